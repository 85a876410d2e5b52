// SPDX-License-Identifier: Apache-2.0
//
// What decoding a type adds to a kernel beside the matrix product: for ranking schedules and for
// leaving room, not a promise.
#pragma once

#include "device/device.h"
#include "expr/decoding.h"
#include "schedule/route.h"

namespace ladder {

/// Cycles of an operation on integers, a packed multiply-add, and a look-up in shared memory.
constexpr double kIntegerCycles = 2, kPackedCycles = 1, kLookupCycles = 4;

/// Cycles in which a quarter of a multiprocessor issues the decoding of one unit, 16 rows by 64
/// columns, by one warp. The address of a look-up is one sum of products.
double decoding_cycles(const Problem& problem, const Device& device, Route route, ScalePlace place);

/// Registers of a thread beyond what plain integers need.
int decoding_registers(const Problem& problem, ScalePlace place);

/// Look-ups of a warp for each pair of codes, a wavefront of shared memory each.
int lookups_per_pair(const Problem& problem);

/// To the power of which too few warps (Costs::Decode::hiding_warps) hide less of the way to a
/// table and back.
double lookup_latency(const Problem& problem);

/// What filling its table adds to the time of a block on `device`.
double table_seconds(const Problem& problem, const Device& device);

}  // namespace ladder
