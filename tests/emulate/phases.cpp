// SPDX-License-Identifier: Apache-2.0
//
// Waves that alternate: barriers are counted, whichever statement a wave met one in.
#include "machine.h"
#include "machine_state.h"

namespace ladder::emulate {
namespace {

constexpr unsigned kSimds = 4;  // of a compute unit, to which waves are dealt out in turn

}  // namespace

void set_priority(bool raised) {
  Fiber& self = *machine->now;
  self.raised = raised;
  if (!raised) return;
  const auto wave = [](const Fiber& fiber) { return fiber.thread / machine->launch.lanes; };
  self.raised_at = static_cast<int>(self.barriers);
  for (const auto& other : machine->fibers) {
    const bool neighbour = other->rank == self.rank && wave(*other) != wave(self) &&
                           wave(*other) % kSimds == wave(self) % kSimds;
    if (neighbour && other->raised_at == self.raised_at) {
      wrong("two waves of a SIMD have priority between the same barriers");
    }
  }
}

void Machine::count_barriers(const Fiber& ended) {
  if (ended.raised) fault("a thread ends with priority");
  for (const auto& other : fibers) {
    if (other->rank != ended.rank || other->state != State::ended) continue;
    if (other->barriers != ended.barriers) fault("threads end after different numbers of barriers");
  }
}

}  // namespace ladder::emulate
