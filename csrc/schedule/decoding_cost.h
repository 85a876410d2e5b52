// SPDX-License-Identifier: Apache-2.0
//
// What decoding a type adds to a kernel beside the matrix product: for ranking schedules and for
// leaving room, not a promise.
#pragma once

#include "expr/decoding.h"
#include "schedule/schedule.h"

namespace ladder {

/// Cycles in which a quarter of a multiprocessor issues the decoding of one unit, 16 rows by 64
/// columns, by one warp: 2 for an operation on integers, 1 for a packed multiply-add, 4 for a
/// look-up in shared memory, whose address is one sum of products.
double decoding_cycles(const Linear& expr, Route route, ScalePlace place);

/// And those in which it issues the scaling of sums, all of which count: they wait for the matrix
/// instruction. 0 unless it was chosen where operands have the scales by themselves; other groups
/// are wide, or have nothing to choose.
double scaled_sums_cycles(const Linear& expr, const Schedule& schedule);

/// Registers of a thread beyond what plain integers need.
int decoding_registers(const Linear& expr, ScalePlace place);

/// And those that the rounds of `schedule` add: deep ones, in sweeps or by the engine, and those
/// that warps are apart by.
int round_registers(const Schedule& schedule, const Linear& expr);

/// Look-ups of a warp for each pair of codes, a wavefront of shared memory each.
int lookups_per_pair(const Linear& expr);

/// To the power of which too few warps (fitted::kHidingWarps) hide less of the way to a table and
/// back.
double lookup_latency(const Linear& expr);

/// What filling its table adds to the time of a block, at `clock` cycles per second.
double table_seconds(const Linear& expr, double clock);

}  // namespace ladder
