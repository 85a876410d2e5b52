// SPDX-License-Identifier: Apache-2.0
//
// The shared memory of one block as the interpreter sees it: bytes, and for each byte who may see
// it. Internal to csrc/program/interpret.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ladder {

class SharedMemory {
 public:
  explicit SharedMemory(std::int64_t bytes) : bytes_(bytes), facts_(bytes) {}

  /// Each returns why the access is not allowed, or an empty text.
  std::string write(std::int64_t at, int size, int thread, const std::uint8_t* from);
  std::string read(std::int64_t at, int size, int thread, std::uint8_t* to);
  /// By a thread of another block of the cluster.
  std::string read_remote(std::int64_t at, int size, std::uint8_t* to);

  /// Bytes that arrive later: readable by `thread` when their group has been waited for.
  std::string write_async(std::int64_t at, int size, int thread, const std::uint8_t* from);
  void commit();
  void wait(int pending);
  /// Of the consumers; of all threads until apart().
  void barrier();
  /// Producers go their own way from here on.
  void apart() { apart_ = true; }
  /// Whose the following accesses are.
  void as_producers(bool yes) { role_ = yes ? 1 : 0; }
  bool by_producers() const { return role_ == 1; }
  void cluster_barrier();

  /// Bytes that the copy engine brings; readable by all once finish() has been called.
  std::string write_bulk(std::int64_t at, int size, const std::uint8_t* from);
  void finish(std::int64_t at, int size);
  /// The bytes of the open group, of which finish() will be called.
  std::vector<std::pair<std::int64_t, int>> hand_over();

  /// Half a barrier: what threads did so far is behind those that synchronise(arrive()) later.
  int arrive() { return epoch_++; }
  void synchronise(int epoch) { synchronised_[role_] = std::max(synchronised_[role_], epoch); }
  /// What is written, and waited for, may be read by matrix instructions after the next barrier;
  /// what all threads know, at once.
  void matrix_fence();
  /// By a matrix instruction of the block; until ended() nobody may overwrite what it reads.
  std::string read_by_matrix(std::int64_t at, int size, std::uint8_t* to);
  void ended(std::int64_t at, int size);
  /// The same, of which all threads of the role have heard.
  void ended_for_all(std::int64_t at, int size);
  /// Now, to ask later whether a barrier has come since.
  int now() const { return epoch_; }
  bool synchronised(int epoch) const { return epoch <= known(); }
  /// What happened up to then, all threads of the role see.
  int known() const { return synchronised_[role_]; }

  bool copies_in_flight() const;

 private:
  enum class State : std::uint8_t { unwritten, pending, written };
  struct Facts {
    State state = State::unwritten;
    int writer = 0, epoch = 0, cluster_epoch = 0;
    int reader = kNobody, read_epoch = 0;
    int fence_epoch = kUnfenced;  // of what was written last
    int products = 0;             // that still read it
  };
  static constexpr int kNobody = -1, kSeveral = -2, kEngine = -3, kUnfenced = -1;
  struct Copy {
    std::int64_t at;
    int size;
  };

  std::string may_write(const Facts& facts, int thread) const;
  void note_read(Facts& facts, int thread);

  std::vector<std::uint8_t> bytes_;
  std::vector<Facts> facts_;
  std::vector<std::vector<Copy>> groups_;  // committed and unfinished, oldest first
  std::vector<Copy> open_;                 // issued since the last commit
  std::int64_t signalled_in_flight_ = 0;   // bytes that a signal counts
  int epoch_ = 0, role_ = 0;
  bool apart_ = false;
  std::array<int, 2> synchronised_{-1, -1};  // what happened up to then, all threads of a role see
  int cluster_epoch_ = 0;
};

}  // namespace ladder
