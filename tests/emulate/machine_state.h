// SPDX-License-Identifier: Apache-2.0
//
// The state of the machine. Internal to tests/emulate.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "machine.h"

namespace ladder::emulate {

constexpr unsigned kMostLanes = 128;
constexpr unsigned kRankShift = 24, kOffset = (1u << kRankShift) - 1, kStatic = 1 << 16;
/// Instead of a thread: it copied there, and a signal has said so.
constexpr int kSignalled = 1 << 20;
constexpr unsigned kStatics = 4;

struct Signal {
  unsigned arrivals = 0, missing = 0, phase = 0;
  std::int64_t bytes = 0;  // expected and not there
};

/// An asynchronous copy of a thread, or an arrival that follows those before it.
struct Copy {
  std::uint32_t to;
  const void* from;
  unsigned whole, bytes;
  bool arrival = false;
  int group = 0;
};

struct Bulk {
  std::uint32_t to;
  const void* from;
  unsigned bytes;
  std::uint32_t signal;
  unsigned blocks;
};

/// Of a warpgroup, whose lanes it has by number.
struct Product {
  unsigned rank, warpgroup;
  void* d[128];
  const std::uint32_t* a[128];
  std::uint64_t b;
  int tokens;
  Operands of;
  int group;
};

/// A product in tensor memory, or the arrival of a commit behind those before it.
struct TensorWork {
  unsigned rank;
  bool commit;
  std::uint32_t sums, a;
  std::uint64_t b;
  std::uint32_t how;
  bool added;
  std::uint32_t signal;
};
/// Of a cell of tensor memory: its store is on its way; has ended; and a fence came since.
enum class Cell : unsigned char { storing, ended, seen };

/// The products of one: groups that it committed; whether a fence came since the last of them.
struct Warpgroup {
  int committed = 0;
  bool fenced = false;
};

enum class State { ready, warp, block, some, cluster, polling, ended };

struct Fiber {
  ucontext_t context;  ///< to begin in; then `place`, which no system call stores
  bool begun = false;
  jmp_buf place;
  unsigned rank, thread;
  State state = State::ready;
  void* brought = nullptr;
  void (*together)(void* const*) = nullptr;
  std::deque<Copy> copies;
  int group = 0;
  unsigned meets = 0;      // threads, itself one of them, that it waits for in State::some
  bool signalled = false;  // it has seen a signal over
  std::vector<std::pair<std::size_t, std::uint32_t>> stores;  // to tensor memory, on their way
  std::vector<std::size_t> unfenced;                          // there, and no fence came since
  bool behind_fence = false;                          // of tensor memory, since it last met others
  bool released = false, released_to_device = false;  // since the last barrier or ticket
  bool acquires = false, acquires_of_device = false;  // is to, before what comes
  unsigned barriers = 0;                              // of AMD's devices, that it has met
  bool raised = false;                                // its priority
  int raised_at = -1;                                 // behind which barrier that was last
};

struct Block {
  unsigned index[3];
  std::vector<unsigned char> memory;
  unsigned char* shared = nullptr;  // 1024-byte aligned, then a gap, then the static variables
  std::map<std::uint32_t, Signal> signals;
  std::vector<int> unfenced;  // by 16 bytes: the thread that wrote there, kSignalled, or -1
  std::map<unsigned, Warpgroup> warpgroups;
  unsigned tensor_columns = 0;         // that it has
  std::vector<std::uint32_t> tensors;  // [lane][column]
  std::vector<Cell> tensor_states;
  bool all = true, agreed = true;
  unsigned alive = 0;  // threads
};

struct Machine {
  const Launch& launch;
  const std::function<void()>& kernel;
  std::mt19937 random;
  std::vector<Block> blocks;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Bulk> bulk;
  std::vector<Product> products;  // oldest first
  jmp_buf scheduler;
  Fiber* now = nullptr;
  std::string why;
  enum class Copies { late, random, early } copies = Copies::random;  // when they end
  unsigned laggard = 0;  // a warp that only runs when no other can, if there is one of that number
  bool preceded = true;  // the preceding kernel has ended, if there is one
  std::vector<TensorWork> tensor_work = {};  // oldest first

  Block& block() { return blocks[now->rank]; }
  void pause(State state);
  void resume(Fiber& fiber);
  void run_cluster(unsigned x, unsigned y, unsigned z);
  bool turn();
  bool run_warp(unsigned rank, unsigned warp);
  bool release(State state, unsigned rank);
  bool release_some(unsigned rank);
  bool something_ends();
  void end_product(std::size_t i);
  void end_stores(Fiber& fiber);
  void end_tensor_work();
  void end_copy(Fiber& fiber, std::size_t i);
  void end_preceding();
  void look_beside(const Block& block);
  void count_barriers(const Fiber& ended);
  void end_bulk(std::size_t i);
  Signal& signal(std::uint32_t address);
  void settle(Signal& signal);
  unsigned char* at(std::uint32_t address, std::int64_t bytes);
  std::string states() const;
};

extern Machine* machine;  ///< that runs

/// Keeps the first reason.
void fault(const std::string& why);

}  // namespace ladder::emulate
