// SPDX-License-Identifier: Apache-2.0
//
// A schedule is the list of decisions that turn an expression into a program. It is one of several
// pipelines, each in a folder of its own: struct, spelling, candidates, objections, cost, shared
// memory and lowering.
//
//     decode   up to 32 tokens: weights straight from memory to the registers of the warp that
//              multiplies them
//     tiles    17 to 8192 tokens by warpgroups, else to 256, of experts from 9 rows of an item on:
//              weights and activations through a ring in shared memory, tiles of rows x tokens by
//              the matrix instruction
//     waves    up to 256 tokens on AMD's devices, of 8 bits up to 8192: weights to registers,
//              activations to shared memory, a k-tile ahead
//     dense    many tokens: no kernel of ours, the weight is dequantised and a library multiplies
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pipelines/cost.h"
#include "pipelines/decode/schedule.h"
#include "pipelines/dense/schedule.h"
#include "pipelines/tiles/schedule.h"
#include "pipelines/waves/schedule.h"
#include "schedule/decisions.h"

namespace ladder {

using Schedule = std::variant<DecodeSchedule, TileSchedule, DenseSchedule, WaveSchedule>;

/// A library multiplies: lower() has no program of it.
inline bool is_dense(const Schedule& schedule) {
  return std::holds_alternative<DenseSchedule>(schedule);
}

/// "tokens 8, warps 4x1, blocks 2, k-tiles 8, stages 4, cluster, in_place, 2 per multiprocessor".
std::string to_string(const Schedule& schedule);
/// The schedule that to_string() prints so; nothing for other text. Its numbers may make no sense:
/// objection() says so.
std::optional<Schedule> schedule_of(std::string_view text);

/// How the codes of a kernel become operands, and its CTAs. Throw InternalError for a dense one.
Route route_of(const Schedule& schedule);
CtaGrid grid_of(const Schedule& schedule, const Problem& problem);

/// Why `schedule` cannot serve the expression on the device; empty when it can.
std::string objection(const Schedule& schedule, const Decisions& decisions);
Cost cost(const Schedule& schedule, const Decisions& decisions);

struct Candidate {
  Schedule schedule;
  Cost cost;
  std::string dropped;  ///< empty: kept
};
/// All that the scheduler considers, in a fixed order. `dependent_launch`: all are launched so,
/// where the device can; elsewhere none is.
std::vector<Schedule> space(const Decisions& decisions, bool dependent_launch = false);
/// Those with costs and objections, kept ones first, cheapest first.
std::vector<Candidate> candidates(const Decisions& decisions, bool dependent_launch = false);

/// The cheapest candidate. Throws Unsupported with the objections when there is none.
Schedule best_schedule(const Decisions& decisions, bool dependent_launch = false);

}  // namespace ladder
