// SPDX-License-Identifier: Apache-2.0
//
// Shared memory, signals, and copies that end later; products.cpp has the products that do.
#include <algorithm>
#include <cstring>

#include "machine_state.h"

namespace ladder::emulate {

unsigned char* Machine::at(std::uint32_t address, std::int64_t bytes) {
  const unsigned rank = address >> kRankShift, offset = address & kOffset;
  alignas(16) static unsigned char nowhere[16];
  if (rank >= blocks.size() || offset + bytes > launch.shared_bytes || offset % bytes != 0) {
    fault("shared memory of block " + std::to_string(rank) + " has " +
          std::to_string(launch.shared_bytes) + " bytes; accessed " + std::to_string(bytes) +
          " at " + std::to_string(offset));
    return nowhere;
  }
  if (blocks[rank].alive == 0)
    fault("block " + std::to_string(rank) + " has ended and is accessed");
  return blocks[rank].shared + offset;
}

Signal& Machine::signal(std::uint32_t address) {
  at(address, 8);
  auto& signals = blocks[std::min<std::size_t>(address >> kRankShift, blocks.size() - 1)].signals;
  const auto found = signals.find(address & kOffset);
  if (found != signals.end()) return found->second;
  fault("no signal was made at " + std::to_string(address));
  static Signal none;
  return none;
}

void Machine::settle(Signal& signal) {
  if (signal.missing > 0 || signal.bytes != 0) return;
  signal.missing = signal.arrivals;
  ++signal.phase;
  for (auto& fiber : fibers) {
    if (fiber->state == State::polling) fiber->state = State::ready;
  }
}

void Machine::end_copy(Fiber& fiber, std::size_t i) {
  const Copy copy = fiber.copies[i];
  fiber.copies.erase(fiber.copies.begin() + static_cast<std::ptrdiff_t>(i));
  if (copy.arrival) {
    Signal& s = signal(copy.to);
    if (s.missing-- == 0) fault("a signal has more arrivals than it was made for");
    std::ranges::replace(blocks[fiber.rank].unfenced, static_cast<int>(fiber.thread), kSignalled);
    settle(s);
    return;
  }
  unsigned char* to = at(copy.to, copy.whole);
  blocks[fiber.rank].unfenced[(copy.to & kOffset) / 16] = static_cast<int>(fiber.thread);
  if (copy.bytes > 0) std::memcpy(to, copy.from, copy.bytes);
  std::memset(to + copy.bytes, 0, copy.whole - copy.bytes);
}

void Machine::end_bulk(std::size_t i) {
  const Bulk copy = bulk[i];
  bulk.erase(bulk.begin() + static_cast<std::ptrdiff_t>(i));
  for (unsigned rank = 0; rank < blocks.size(); ++rank) {
    if ((copy.blocks >> rank & 1) == 0) continue;
    const auto there = [&](std::uint32_t address) {
      return (address & kOffset) | rank << kRankShift;
    };
    if (copy.bytes % 16 != 0) fault("a bulk copy of " + std::to_string(copy.bytes) + " bytes");
    for (unsigned done = 0; done < copy.bytes; done += 16) {
      std::memcpy(at(there(copy.to + done), 16), static_cast<const char*>(copy.from) + done, 16);
    }
    Signal& s = signal(there(copy.signal));
    s.bytes -= copy.bytes;
    settle(s);
  }
}

/// One asynchronous thing, if there is any.
bool Machine::something_ends() {
  std::vector<Fiber*> copying;
  for (auto& fiber : fibers) {
    // A copy that no group has yet may end, too.
    if (!fiber->copies.empty()) copying.push_back(fiber.get());
  }
  const auto others = copying.size() + bulk.size() + (products.empty() ? 0 : 1);
  const auto count = others + (tensor_work.empty() ? 0 : 1);
  if (count == 0) return false;
  const auto chosen = random() % count;
  if (chosen == others) {
    end_tensor_work();
  } else if (chosen == copying.size() + bulk.size()) {
    end_product(0);
  } else if (chosen < copying.size()) {
    // In any order, but an arrival behind the copies before it.
    auto& copies = copying[chosen]->copies;
    const auto arrival = std::ranges::find_if(copies, &Copy::arrival) - copies.begin();
    end_copy(*copying[chosen], arrival == 0 ? 0 : random() % static_cast<std::size_t>(arrival));
  } else {
    end_bulk(chosen - copying.size());
  }
  return true;
}

unsigned char* shared_memory() { return machine->block().shared; }
unsigned char* static_shared(unsigned which) {
  if (which >= kStatics) wrong("too many variables in shared memory");
  return machine->block().shared + machine->launch.shared_bytes + (1 + which) * kStatic;
}
std::uint32_t address_of(const void* shared) {
  const auto offset = static_cast<const unsigned char*>(shared) - machine->block().shared;
  if (offset < 0 || offset > machine->launch.shared_bytes) wrong("no pointer into shared memory");
  return static_cast<std::uint32_t>(offset) | machine->now->rank << kRankShift;
}
std::uint32_t address_in(std::uint32_t address, unsigned rank) {
  return (address & kOffset) | rank << kRankShift;
}
std::uint32_t own(std::uint32_t address) {
  if (address >> kRankShift != machine->now->rank) wrong("an address of another block");
  return address;
}
const void* aligned(const void* global, unsigned bytes) {
  if (reinterpret_cast<std::uintptr_t>(global) % bytes != 0) {
    wrong("an access of " + std::to_string(bytes) + " bytes at no multiple of them");
  }
  return global;
}
unsigned char* at(std::uint32_t address, std::int64_t bytes) { return machine->at(address, bytes); }

void copy_async(std::uint32_t to, const void* from, unsigned whole, unsigned bytes) {
  if (bytes > whole) wrong("an asynchronous copy of " + std::to_string(bytes) + " bytes");
  Fiber& self = *machine->now;
  self.copies.push_back({own(to), aligned(from, whole), whole, bytes, false, self.group});
  if (machine->copies == Machine::Copies::early) machine->end_copy(self, 0);
}
void copy_commit() { ++machine->now->group; }
void copy_wait(int pending) {
  Fiber& self = *machine->now;
  while (!self.copies.empty() && self.copies.front().group < self.group - pending) {
    machine->end_copy(self, 0);
  }
}

void copy_wait_all() {
  while (!machine->now->copies.empty()) machine->end_copy(*machine->now, 0);
}

void store_shared(std::uint32_t to, std::uint32_t value) {
  std::memcpy(machine->at(own(to), 4), &value, 4);
  machine->block().unfenced[(to & kOffset) / 16] = static_cast<int>(machine->now->thread);
}

void matrix_fence() {
  const int thread = static_cast<int>(machine->now->thread);
  std::ranges::replace(machine->block().unfenced, thread, -1);
  if (machine->now->signalled) std::ranges::replace(machine->block().unfenced, kSignalled, -1);
}

void signal_init(std::uint32_t signal, unsigned arrivals) {
  machine->at(own(signal), 8);
  machine->block().signals[signal & kOffset] = {arrivals, arrivals, 0, 0};
}
void signal_arrive(std::uint32_t signal, std::int64_t expected_bytes) {
  Signal& s = machine->signal(own(signal));
  s.bytes += expected_bytes;
  if (s.missing-- == 0) wrong("a signal has more arrivals than it was made for");
  machine->settle(s);
}
void signal_arrive_after_copies(std::uint32_t signal) {
  Fiber& self = *machine->now;
  self.copies.push_back({own(signal), nullptr, 0, 0, true, self.group});
  if (machine->copies == Machine::Copies::early) machine->end_copy(self, 0);
}
bool signal_over(std::uint32_t signal, unsigned parity) {
  if ((machine->signal(own(signal)).phase & 1) != parity) {
    machine->now->behind_fence = false;
    return machine->now->signalled = true;
  }
  machine->pause(State::polling);
  return false;
}
void copy_bulk(std::uint32_t to, const void* from, unsigned bytes, std::uint32_t signal,
               unsigned blocks) {
  machine->bulk.push_back({own(to), aligned(from, 16), bytes, own(signal), blocks});
  if (machine->copies == Machine::Copies::early) machine->end_bulk(machine->bulk.size() - 1);
}

}  // namespace ladder::emulate
