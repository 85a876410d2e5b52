// SPDX-License-Identifier: Apache-2.0
//
// The tensor memory of one block as the interpreter sees it: 32 bits of each lane and column, and
// who may see them. Internal to csrc/program/interpret.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ladder {

class TensorMemory {
 public:
  static constexpr std::int64_t kLanes = 128;

  explicit TensorMemory(std::int64_t columns = 0)
      : columns_(columns), bits_(kLanes * columns), facts_(kLanes * columns) {}

  /// Each returns why the access is not allowed, or an empty text. By a thread, asynchronously:
  std::string store(std::int64_t lane, std::int64_t column, std::uint32_t bits);
  std::string load(std::int64_t lane, std::int64_t column, std::uint32_t& bits) const;
  /// By a product, until ended(): what it reads, and a sum, which it begins `anew` or adds to.
  std::string operand(std::int64_t lane, std::int64_t column, std::uint32_t& bits);
  std::string sum(std::int64_t lane, std::int64_t column, bool anew, std::uint32_t& bits);
  void add_up(std::int64_t lane, std::int64_t column, std::uint32_t bits) {
    bits_[at(lane, column)] = bits;
  }
  void ended(std::int64_t lane, std::int64_t column);
  /// Products that have ended since are behind the next fence only.
  void products_ended() { ++ends_; }

  void wait();
  /// At `epoch` of the block (SharedMemory::now()), and behind what all of its threads know.
  void fence_before(int epoch);
  void fence_after(int known) { known_ = known, ends_seen_ = ends_; }

 private:
  enum class State : std::uint8_t { unwritten, storing, stored, fenced, summed };
  struct Facts {
    State state = State::unwritten;
    int epoch = 0;     // of the fence
    int products = 0;  // on their way that read it, or add to it
    int ended = 0;     // when the last of them had
  };
  std::size_t at(std::int64_t lane, std::int64_t column) const {
    return static_cast<std::size_t>(lane * columns_ + column);
  }

  std::int64_t columns_;
  std::vector<std::uint32_t> bits_;
  std::vector<Facts> facts_;
  int known_ = -1, ends_ = 0, ends_seen_ = 0;
};

}  // namespace ladder
