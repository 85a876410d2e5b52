// SPDX-License-Identifier: Apache-2.0
#include "runtime/counters.h"

#include <array>
#include <atomic>
#include <mutex>

#include "base/error.h"
#include "codegen/cuda/driver.h"
#include "runtime/device_row.h"

namespace ladder {
namespace {

// A stream holds about a thousand launches at a time and a launch takes at most n / 64 counters:
// before the ring comes round, a launch of 57344 rows has ended.
constexpr std::uint64_t kRing = std::uint64_t{1} << 20;

struct Ring {
  std::uint32_t* first = nullptr;
  std::atomic<std::uint64_t> taken{0};
};
struct Rings {
  Ring eager, captured;
};

Rings& rings(int ordinal) {
  static std::array<Rings, kMaxDevices> all;
  return all.at(static_cast<std::size_t>(ordinal));
}

}  // namespace

void prepare_counters(int ordinal) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (Ring* ring : {&rings(ordinal).eager, &rings(ordinal).captured}) {
    if (ring->first == nullptr) {
      ring->first = static_cast<std::uint32_t*>(cuda::zeroed_memory(kRing * 4, ordinal));
    }
  }
}

std::uint32_t* take_counters(int ordinal, std::int64_t count, void* stream) {
  LADDER_CHECK(0 < count && static_cast<std::uint64_t>(count) <= kRing, count, " counters");
  Ring& ring = cuda::capturing(stream, ordinal) ? rings(ordinal).captured : rings(ordinal).eager;
  const auto wanted = static_cast<std::uint64_t>(count);
  std::uint64_t at = ring.taken.load(std::memory_order_relaxed), start = 0;
  do {
    // A run does not cross the end of the ring.
    start = at % kRing + wanted > kRing ? at + kRing - at % kRing : at;
  } while (!ring.taken.compare_exchange_weak(at, start + wanted, std::memory_order_relaxed));
  return ring.first + start % kRing;
}

}  // namespace ladder
