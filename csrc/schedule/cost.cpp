// SPDX-License-Identifier: Apache-2.0
// What a schedule is expected to take.
#include <algorithm>
#include <cmath>

#include "layout/weight_image.h"
#include "schedule/decoding_cost.h"
#include "schedule/schedule.h"
#include "schedule/wavefronts.h"

namespace ladder {
namespace {

/// What a way of going through the rounds costs beside moving and multiplying, in microseconds and
/// exponents; fitted to the measurements of benchmarks/results/linear.md on one H200.
struct Way {
  double fixed;          ///< launch, first bytes, the last reduction
  double per_wave;       ///< of blocks that are resident together
  double latency;        ///< to the power of which fewer than sixteen warps hide less
  double uneven;         ///< to the power of which the fullest multiprocessor holds up the others
  double cluster;        ///< blocks that wait for each other
  double issue = 1;      ///< how much of the time of instructions counts
  double overlap = 2.5;  ///< of memory and instructions: 1 adds them, many takes the larger
  double wide = 1;       ///< times `issue`, for more than eight tokens
};
constexpr Way kOneRound = {3.4, 0.3, 0.23, 0, 0.3}, kRegisters = {3.6, 0.44, 0.06, 0.58, 0.5},
              kRing = {3.5, 0.3, 0.05, 2, 1.04}, kDeep = {2.3, 2.25, 0, 0.75, 0, 1, 4},
              kEngine = {2.7, 0, 0, 0.75, 0.3, 1, 6, 1.1},
              kApart = {2.8, 1.55, 0, 0.43, 0, 0.92, 12},
              kTogether = {2.3, 2.25, 0, 0.75, 0, 1, 1.75};

const Way& way_of(const Schedule& s) {
  if (s.sharers > 0) return kEngine;
  if (s.x_rounds > 0) return s.x_slack > 0 ? kApart : kTogether;
  return s.depth > 0 ? kDeep : s.stages > 1 ? kRing : s.rounds > 1 ? kRegisters : kOneRound;
}

}  // namespace

Cost cost(const Schedule& s, const Linear& expr, const Device& device) {
  constexpr double kClock = 1.755e9, kQuarters = 4;
  // Cycles of a quarter of a multiprocessor. Masks and shifts run at half rate and one m16n8k16
  // takes 6.5 by itself; fitted together, matrix instructions count 1.9 times, with all that feeds
  // them, and the rest mostly hides behind them.
  constexpr double kAlu = 0.4, kMatrix = 1.9 * 6.5, kLoadMatrix = 6;
  // Activations and sums come from the second-level cache, in part while the weights come anyway.
  // Those that the engine brings come all at once, or round by round; a cluster reads them once.
  constexpr double kActivations = 0.44, kByEngine = 0.7, kByRounds = 0.6, kSums = 0.3;
  const double activations =
      s.sharers > 0 ? (engine_by_rounds(s) ? kByRounds : kByEngine) / s.sharers : kActivations;
  const double columns = s.tokens / 8.0;
  const bool own_zero = s.route != Route::multiply_add && (s.sweeps == 1 || s.x_rounds > 0);
  const double steps = s.route == Route::digits ? 2 : 4;  // of a block
  const double unit = kAlu * decoding_cycles(expr, s.route) +
                      kMatrix * steps * columns * (own_zero ? 1 + 1.0 / s.units : 1) +
                      kLoadMatrix * steps * columns / s.units;
  const double units = static_cast<double>(round_up(expr.n, kBlock) * round_up(expr.k, kBlock)) /
                       1024;  // of 16 rows and 64 columns
  const double blocks = static_cast<double>(s.tiles(expr.n) * s.splits(expr.k));
  const double per_device = blocks / device.multiprocessors;
  const double moved = activations * static_cast<double>(expr.max_m * s.block_columns() *
                                                         bytes_of(expr.activation)) +
                       (s.reduction == Reduction::ordered
                            ? kSums * static_cast<double>(s.block_rows() * s.tokens * 8)
                            : 0);
  Cost out{};
  out.memory_seconds =
      (least_bytes(expr, expr.max_m) + blocks * moved) / device.global.bytes_per_second;
  out.issue_seconds = units * unit / (kClock * kQuarters * device.multiprocessors);
  out.shared_seconds =
      static_cast<double>(shared_wavefronts(s, expr)) * blocks / (kClock * device.multiprocessors);
  const Way& way = way_of(s);
  const double waves = std::max(per_device / s.blocks_per_multiprocessor, 1.0);
  // A block that loads all it has at once costs by what it loads.
  const double block_bytes =
      static_cast<double>(s.block_rows() * s.block_columns()) * expr.bits / 8;
  const double share = s.rounds == 1 ? std::max(1.0, block_bytes / 32768) : 1.0;
  out.fixed_seconds =
      1e-6 * (way.fixed + (way.per_wave * share + 1e6 * table_seconds(expr)) * waves +
              (s.reduction == Reduction::cluster ? way.cluster : 0));
  const double resident = std::min<double>(s.blocks_per_multiprocessor, std::ceil(per_device));
  const double warps = resident * s.warps_n * s.warps_k;
  const double uneven = std::min(std::ceil(per_device) / per_device, 2.0);
  // Memory and instructions overlap in part: more than the larger, less than the sum.
  const double issue = way.issue * (s.tokens > 8 ? way.wide : 1);
  const double instructions = std::max(issue * out.issue_seconds, out.shared_seconds);
  // Look-ups wait for shared memory, the more so beside signals.
  const double with_lookups = s.x_slack > 0 ? 2 : 2.5;
  const double overlap =
      lookups_per_pair(expr) > 0 ? std::min(way.overlap, with_lookups) : way.overlap;
  const double both = std::pow(
      std::pow(out.memory_seconds, overlap) + std::pow(instructions, overlap), 1 / overlap);
  out.seconds = both * std::pow(std::max(16 / warps, 1.0), way.latency + lookup_latency(expr)) *
                    std::pow(uneven, way.uneven) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
