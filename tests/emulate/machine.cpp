// SPDX-License-Identifier: Apache-2.0
//
// Threads as fibers, and who goes on when.
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "machine_state.h"

namespace ladder::emulate {

Machine* machine = nullptr;

namespace {

constexpr unsigned kWarpgroup = 128;
constexpr std::size_t kStack = 4 << 20;  // of addresses; few pages of it are touched

class Stacks {
 public:
  void* of(std::size_t i) {
    while (stacks_.size() <= i) {
      void* at = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) throw std::bad_alloc();
      stacks_.push_back(at);
    }
    return stacks_[i];
  }

 private:
  std::vector<void*> stacks_;
};

/// Where a fiber begins.
void start() {
  machine->kernel();
  const Fiber& self = *machine->now;
  if (self.acquires || self.acquires_of_device) fault("a thread ends without an acquire");
  machine->count_barriers(self);
  --machine->block().alive;
  machine->pause(State::ended);
}

void make_context(ucontext_t& context, void* stack) {
  getcontext(&context);
  context.uc_stack = {stack, 0, kStack};
  context.uc_link = nullptr;
  makecontext(&context, start, 0);
}

}  // namespace

void fault(const std::string& why) {
  if (machine->why.empty()) machine->why = why;
}

void Machine::pause(State state) {
  now->state = state;
  if (_setjmp(now->place) == 0) _longjmp(scheduler, 1);
}

void Machine::resume(Fiber& fiber) {
  now = &fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}

/// Lets threads go on that wait for each other, once all that have not ended do.
bool Machine::release(State state, unsigned rank) {
  const auto concerned = [&](const Fiber& fiber) {
    return fiber.state != State::ended && (state == State::cluster || fiber.rank == rank);
  };
  bool any = false;
  for (const auto& fiber : fibers) {
    if (!concerned(*fiber)) continue;
    if (fiber->state != state) return false;
    any = true;
  }
  if (!any) return false;
  for (auto& fiber : fibers) {
    if (concerned(*fiber)) fiber->state = State::ready;
  }
  blocks[rank].agreed = blocks[rank].all;
  blocks[rank].all = true;
  return true;
}

/// The same of those that wait for a number of threads, once as many do.
bool Machine::release_some(unsigned rank) {
  std::vector<Fiber*> waiting;
  for (auto& fiber : fibers) {
    if (fiber->rank == rank && fiber->state == State::some) waiting.push_back(fiber.get());
  }
  if (waiting.empty() || waiting.size() < waiting.front()->meets) return false;
  if (waiting.size() > waiting.front()->meets) fault("more threads at a barrier than it is of");
  for (Fiber* fiber : waiting) fiber->state = State::ready;
  return true;
}

/// Each ready lane of the warp until it waits for something.
bool Machine::run_warp(unsigned rank, unsigned warp) {
  const auto first = rank * launch.threads + warp * launch.lanes;
  const unsigned start_at = random() % launch.lanes;
  bool ran = false;
  for (unsigned i = 0; i < launch.lanes && why.empty(); ++i) {
    Fiber& fiber = *fibers[first + (start_at + i) % launch.lanes];
    if (fiber.state != State::ready) continue;
    ran = true;
    resume(fiber);
  }
  return ran;
}

std::string Machine::states() const {
  static constexpr const char* kNames[] = {"ready",
                                           "at a warp's instruction",
                                           "at a barrier",
                                           "at a barrier of some",
                                           "at a barrier of the cluster",
                                           "at a signal",
                                           "ended"};
  std::map<std::string, int> count;
  for (const auto& fiber : fibers) ++count[kNames[static_cast<int>(fiber->state)]];
  std::string out;
  for (const auto& [name, threads] : count) out += ", " + std::to_string(threads) + " " + name;
  return out;
}

/// Something happens; false when nothing can any more.
bool Machine::turn() {
  if (copies == Copies::random && random() % 4 == 0) something_ends();
  const unsigned warps = launch.threads / launch.lanes,
                 all = warps * static_cast<unsigned>(blocks.size());
  const unsigned chosen = random() % all;
  for (unsigned i = 0; i < all; ++i) {
    const unsigned warp = (chosen + i) % all;
    if (warp != laggard && run_warp(warp / warps, warp % warps)) return true;
  }
  if (laggard < all && run_warp(laggard / warps, laggard % warps)) return true;
  for (unsigned rank = 0; rank < blocks.size(); ++rank) {
    if (release(State::block, rank) || release_some(rank)) return true;
  }
  if (release(State::cluster, 0)) return true;
  return something_ends();
}

void Machine::run_cluster(unsigned x, unsigned y, unsigned z) {
  static Stacks stacks;
  copies = static_cast<Copies>(random() % 3);
  const unsigned warps = launch.threads / launch.lanes * launch.cluster[0] * launch.cluster[1];
  laggard = random() % (2 * warps);
  blocks.clear();
  fibers.clear();
  bulk.clear();
  products.clear();
  tensor_work.clear();
  for (unsigned rank = 0; rank < launch.cluster[0] * launch.cluster[1]; ++rank) {
    Block block{{x * launch.cluster[0] + rank % launch.cluster[0],
                 y * launch.cluster[1] + rank / launch.cluster[0], z},
                {},
                nullptr,
                {}};
    const auto bytes = static_cast<std::size_t>(launch.shared_bytes) + (1 + kStatics) * kStatic;
    block.memory.assign(bytes + 1024 + 1, 0xff);
    block.alive = launch.threads;
    block.unfenced.assign(static_cast<std::size_t>(launch.shared_bytes) / 16 + 1, -1);
    blocks.push_back(std::move(block));
    void* memory = blocks.back().memory.data() + 1;  // something is in front of it
    std::size_t room = blocks.back().memory.size() - 1;
    blocks.back().shared = static_cast<unsigned char*>(std::align(1024, bytes, memory, room));
    for (unsigned thread = 0; thread < launch.threads; ++thread) {
      auto fiber = std::make_unique<Fiber>();
      fiber->rank = rank, fiber->thread = thread;
      make_context(fiber->context, stacks.of(fibers.size()));
      fibers.push_back(std::move(fiber));
    }
  }
  while (why.empty() && turn()) {
  }
  for (const auto& fiber : fibers) {
    if (fiber->state != State::ended) fault("deadlock: " + states().substr(2));
  }
  if (!products.empty() || !tensor_work.empty()) fault("a block ends before its products");
  for (const Block& block : blocks) {
    if (block.tensor_columns != 0) fault("a block ends with tensor memory");
  }
  for (const Block& block : blocks) look_beside(block);
}

/// Before shared memory and in the gap behind it is what was there.
void Machine::look_beside(const Block& block) {
  const auto* end = block.shared + launch.shared_bytes;
  const auto untouched = [](const unsigned char* from, const unsigned char* to) {
    return std::all_of(from, to, [](unsigned char byte) { return byte == 0xff; });
  };
  if (!untouched(block.memory.data(), block.shared) || !untouched(end, end + kStatic)) {
    fault("a write beside shared memory");
  }
}

void Machine::end_preceding() {
  if (std::exchange(preceded, true)) return;
  const auto early = launch.preceding();
  if (!early.empty()) fault(early);
}

std::string run(const Launch& launch, const std::function<void()>& kernel) {
  Machine here{launch, kernel, std::mt19937(launch.seed), {}, {}, {}, {}, {}, nullptr, {}};
  machine = &here;
  here.preceded = launch.preceding == nullptr;
  if (here.random() % 4 == 0) here.end_preceding();
  std::vector<std::array<unsigned, 3>> clusters;
  for (unsigned x = 0; x < launch.grid[0] / launch.cluster[0]; ++x) {
    for (unsigned y = 0; y < launch.grid[1] / launch.cluster[1]; ++y) {
      for (unsigned z = 0; z < launch.items; ++z) clusters.push_back({x, y, z});
    }
  }
  std::shuffle(clusters.begin(), clusters.end(), here.random);
  for (const auto& [x, y, z] : clusters) {
    here.run_cluster(x, y, z);
    if (!here.why.empty()) break;
  }
  if (!here.preceded) fault("nobody waited for the preceding kernel");
  machine = nullptr;
  return here.why;
}

void wrong(const std::string& why) {
  fault(why);
  while (true) machine->pause(State::ended);
}

bool subnormals_multiply() { return machine->launch.subnormals; }
bool reads_fnuz() { return machine->launch.fnuz; }
unsigned thread_index() { return machine->now->thread; }
unsigned block_index(int dimension) { return machine->block().index[dimension]; }
unsigned block_count(int dimension) { return machine->launch.grid[dimension]; }
unsigned thread_count() { return machine->launch.threads; }
unsigned rank_in_cluster() { return machine->now->rank; }
unsigned warp_lanes() { return machine->launch.lanes; }

namespace {

void with_lanes(unsigned count, void* mine, void (*together)(void* const* lanes)) {
  Fiber& self = *machine->now;
  const auto first = self.rank * machine->launch.threads + self.thread / count * count;
  self.brought = mine, self.together = together;
  void* lanes[kMostLanes];
  for (unsigned lane = 0; lane < count; ++lane) {
    Fiber& other = *machine->fibers[first + lane];
    if (&other != &self && other.state != State::warp) {
      machine->pause(State::warp);
      return;
    }
    lanes[lane] = other.brought;
  }
  for (unsigned lane = 0; lane < count; ++lane) {
    Fiber& other = *machine->fibers[first + lane];
    if (other.together != together) wrong("lanes of a warp are at different instructions");
    other.state = State::ready;
  }
  together(lanes);
}

}  // namespace

void with_warp(void* mine, void (*together)(void* const* lanes)) {
  with_lanes(machine->launch.lanes, mine, together);
}

void with_warpgroup(void* mine, void (*together)(void* const* lanes)) {
  with_lanes(kWarpgroup, mine, together);
}

void block_barrier() {
  machine->now->behind_fence = false;
  machine->pause(State::block);
}
void barrier_of(unsigned threads) {
  machine->now->behind_fence = false;
  machine->now->meets = threads;
  machine->pause(State::some);
}
bool block_and(bool mine) {
  machine->block().all &= mine;
  block_barrier();
  return machine->block().agreed;
}

void fence(bool release, bool device) {
  Fiber& self = *machine->now;
  if (release) {
    self.released = true;
    self.released_to_device |= device;
  } else {
    self.acquires = false;
    if (device) self.acquires_of_device = false;
  }
}

void fenced_barrier() {
  Fiber& self = *machine->now;
  if (!self.released) wrong("a barrier without a release");
  if (self.acquires) wrong("a barrier before the acquire of the last one");
  self.released = false, self.acquires = true;
  ++self.barriers;
  block_barrier();
}

void took_ticket() {
  for (const auto& fiber : machine->fibers) {
    if (fiber->rank != machine->now->rank) continue;
    if (!fiber->released_to_device) wrong("a ticket before all have released to the device");
    fiber->released_to_device = false;
  }
}

void came_last() {
  for (const auto& fiber : machine->fibers) {
    if (fiber->rank == machine->now->rank) fiber->acquires_of_device = true;
  }
}

void cluster_barrier() { machine->pause(State::cluster); }
void wait_for_preceding() { machine->end_preceding(); }

}  // namespace ladder::emulate
