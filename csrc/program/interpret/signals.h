// SPDX-License-Identifier: Apache-2.0
//
// The mbarriers of one block as the interpreter sees them. A phase ends at its Await, not before:
// whatever the program does between is legal only if it were so for a phase that ends late.
// Internal to csrc/program/interpret.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/interpret/shared_memory.h"
#include "program/program.h"

namespace ladder {

class Signals {
 public:
  explicit Signals(const Program& program);

  /// Each returns why it is not allowed, or an empty text.
  std::string init(SignalId signal, const SharedMemory& shared);
  std::string expect(SignalId signal, std::int64_t index, std::int64_t bytes,
                     const SharedMemory& shared);
  std::string arrive(SignalId signal, std::int64_t index, Arrival by, SharedMemory& shared);
  /// `size` bytes of shared memory from `at` on are on their way; those of a peer may be ahead of
  /// this block's account.
  std::string copied(SignalId signal, std::int64_t index, std::int64_t at, int size,
                     bool ahead = false);
  /// That blocks of the cluster may count on it.
  std::string known_to_peers(SignalId signal, std::int64_t index) const;
  /// The blocks of the cluster meet: what was initialised all threads of all of them know.
  void meet();
  /// One arrival, when the first `products` products in tensor memory have ended.
  std::string commit(SignalId signal, std::int64_t index, std::int64_t products,
                     const SharedMemory& shared);
  /// Ends the phase when it is the one meant; nothing when that one has ended before. `products`:
  /// so many have ended by that, else it stays as it is.
  std::string await(SignalId signal, std::int64_t index, std::int64_t parity, SharedMemory& shared,
                    std::int64_t& products);

 private:
  struct Bytes {
    std::int64_t at;
    int size;
  };
  struct Mbarrier {
    bool initialised = false;
    bool known_to_all = false;
    int initialised_at = 0, phase = 0, arrived = 0;
    int threads_arrived_at = -1;
    std::int64_t expected = 0, copied = 0, products = 0;
    std::vector<Bytes> bytes;
  };

  std::string use(const Mbarrier& mbarrier, const SharedMemory& shared) const;
  std::string arrival(Mbarrier& mbarrier, SignalId signal, int count);

  const std::vector<Signal>& signals_;
  const int threads_, producers_;
  std::vector<std::vector<Mbarrier>> mbarriers_;
};

}  // namespace ladder
