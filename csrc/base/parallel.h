// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace ladder {

/// A half-open range of work given to one thread.
using RangeBody = std::function<void(std::int64_t begin, std::int64_t end)>;

/// Runs a body over [0, count) in ranges of at least `grain`, possibly on several threads, and
/// returns when all are done. The binding passes torch's own pool; tests pass `serial`.
using Parallel = std::function<void(std::int64_t count, std::int64_t grain, const RangeBody& body)>;

/// Everything on the calling thread.
inline void serial(std::int64_t count, std::int64_t /*grain*/, const RangeBody& body) {
  if (count > 0) body(0, count);
}

}  // namespace ladder
