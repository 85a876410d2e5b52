// SPDX-License-Identifier: Apache-2.0
//
// Counters for reductions through global memory: zero when a kernel starts, zero when it ends. Each
// launch takes the next ones of a ring, so that two kernels that run at once on two streams count
// apart; launches recorded in graphs have a ring of their own, because they come again later.
#pragma once

#include <cstdint>

namespace ladder {

/// Makes the rings of a device. Allocates: not during a capture.
void prepare_counters(int ordinal);

/// `count` counters on the device for one launch on `stream`.
std::uint32_t* take_counters(int ordinal, std::int64_t count, void* stream);

}  // namespace ladder
