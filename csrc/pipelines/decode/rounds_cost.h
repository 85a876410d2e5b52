// SPDX-License-Identifier: Apache-2.0
//
// What the rounds of a decode kernel add to its instructions and registers: for ranking schedules
// and for leaving room, not a promise.
#pragma once

#include "pipelines/decode/schedule.h"

namespace ladder {

/// Cycles in which a quarter of a multiprocessor issues the scaling of sums of one unit, 16 rows by
/// 64 columns, all of which count: they wait for the matrix instruction. 0 unless it was chosen
/// where operands have the scales by themselves; other groups are wide, or have nothing to choose.
double scaled_sums_cycles(const Problem& problem, const DecodeSchedule& schedule);

/// Registers of a thread that the rounds of `schedule` add to decoding_registers(): deep ones, in
/// sweeps or by the engine, and those that warps are apart by.
int round_registers(const DecodeSchedule& schedule, const Problem& problem);

}  // namespace ladder
