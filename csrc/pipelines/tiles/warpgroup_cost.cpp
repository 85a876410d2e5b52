// SPDX-License-Identifier: Apache-2.0
// What a tile kernel of warpgroups is expected to take.
#include <algorithm>
#include <cmath>

#include "layout/weight_image.h"
#include "pipelines/tiles/schedule.h"
#include "schedule/decoding_cost.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

// Fitted to 288 kernels of uint4 on one H200, 32 to 1024 tokens, by their logarithms, of which the
// model has 13 % at the root of the mean square (docs/dev/notebook_gpu.md).

// Of a scheduler, for a warp: for one cycle of decoding_cycles(); for a sum that is scaled, which
// waits for its products; a k-step.
constexpr double kDecoding = 1.33, kScaling = 4, kStepCycles = 2;
// Of a multiprocessor: the least of a product, which a single warpgroup gives half as often.
constexpr double kLeastProduct = 13.1;

/// What copies take from those who multiply: how much longer products take than by the rate; of a
/// k-tile, cycles of a warp, and what nothing hides.
struct Pace {
  double product, tile_cycles, serial_cycles;
};
Pace pace_of(const TileSchedule& s) {
  if (!s.producers) return {1.1, 81, 160};
  // Of one H100: clocks of one shape (docs/dev/notebook_gpu.md, "Producers"), and products, which
  // overlap with more than kOverlap says, from 25 problems of 1536 to 8192 tokens. A ring of three
  // stages leaves producers one to be ahead.
  return {0.94, 30, s.stages > 3 ? 40.0 : 100.0};
}

// Decoding, products and copies overlap in part: exponents of the sum of their powers.
constexpr double kOverlap = 3, kMemoryOverlap = 4;
// Bytes of a cycle that a multiprocessor takes from L2, or from memory by way of it.
constexpr double kFill = 40;
// Seconds: launch and first bytes; a cluster that adds up, in each wave; sums that are added in
// order, each.
constexpr double kLaunch = 3.7e-6, kCluster = 4e-6, kOrderedSum = 5.6e-11;
// What a dependent launch gains by asking for weights before it waits, which producers do not: 1 to
// 2 us behind a rounding, measured.
constexpr double kWeightsAhead = 1e-6;

// Of tensor memory, not fitted, and measured nowhere: of a scheduler, a store of 16 rows; what a
// barrier of the warps in front of a block's products leaves idle.
constexpr double kStoreCycles = 4, kMeetingCycles = 40;

/// Of the multiprocessors, those that clusters of so many CTAs can be on; what is not known is all.
double cluster_share(const Device& device, std::int64_t ctas) {
  const auto& shares = device.cluster_shares;
  const double share = shares[std::min<std::size_t>(ctas, shares.size()) - 1];
  return share > 0 ? share : 1;
}

}  // namespace

Cost cost_of_warpgroups(const TileSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const auto carried = fitted::carried_to(device);
  const MatrixInstruction& row = *product_row(s, problem, device);
  const CtaGrid grid = grid_of(s, problem);
  const Pace pace = pace_of(s);
  const auto units = static_cast<double>(s.units()), tokens = static_cast<double>(s.tokens);
  const double steps = static_cast<double>(s.columns) / row.k;  // of a k-tile
  const double warps = s.warps_n, groups = warps * 32 / row.lanes();
  const bool product = takes_zero_product(problem, s.route);

  const bool cluster = s.reduction == Reduction::cluster;
  const double ctas = static_cast<double>(grid.count() * problem.products());
  const double places =
      std::round(device.multiprocessors * cluster_share(device, cluster ? grid.splits : 1));
  const double waves = std::ceil(ctas / (places * s.ctas_per_sm));
  const double resident =
      std::min<double>(s.ctas_per_sm, std::ceil(ctas / waves / device.multiprocessors));

  // Cycles of a multiprocessor for a k-tile of all that are on it.
  const double rate = operations_per_second(device, row) / (carried.clock * device.multiprocessors);
  const double least = groups * resident > 1 ? kLeastProduct : 2 * kLeastProduct;
  // Of a warpgroup, whose warps have 16 rows each in a unit.
  const double instructions_of_step = (units + (product ? 1 : 0)) * 4 * 16 / row.m;
  const double products = std::max(pace.product * 2 * row.m * tokens * row.k / rate, least) *
                          instructions_of_step * groups * steps * resident;
  const double decoding =
      kDecoding * units * decoding_cycles(problem, s.route, s.scale_place) * s.columns / kBlock;
  const double scaling =
      keeps_totals(s, problem) ? kScaling * units * tokens / 2 * groups_of_tile(s, problem) : 0;
  const double storing = s.tensor_memory ? kStoreCycles * units * steps : 0;
  const double instructions =
      (decoding + scaling + storing + kStepCycles * steps + pace.tile_cycles) * warps /
      device.schedulers * resident;
  const double codes = static_cast<double>(s.rows) * s.columns * problem.weight.bits / 8;
  const double x = tokens * s.columns * bytes_of(problem.formats.x);
  const double copies = (codes + x) / kFill * resident;
  const double k_tile = std::pow(std::pow(products, kOverlap) + std::pow(instructions, kOverlap) +
                                     std::pow(copies, kOverlap),
                                 1 / kOverlap) +
                        pace.serial_cycles +
                        (s.tensor_memory ? kMeetingCycles * s.columns / kBlock : 0);

  Cost out{};
  const double cycles = waves * s.k_tiles / carried.clock;
  out.issue_seconds = k_tile * cycles;
  out.shared_seconds = copies * cycles;
  out.memory_seconds = least_bytes(problem, problem.m) / device.global.bytes_per_second;
  out.fixed_seconds = kLaunch + (cluster ? kCluster * waves : 0);
  if (s.producers && s.dependent_launch) out.fixed_seconds += kWeightsAhead;
  if (s.reduction == Reduction::ordered) {
    out.fixed_seconds += kOrderedSum * static_cast<double>(s.rows) * tokens *
                         static_cast<double>(grid.splits) * waves;
  }
  out.seconds = std::pow(std::pow(out.memory_seconds, kMemoryOverlap) +
                             std::pow(out.issue_seconds, kMemoryOverlap),
                         1 / kMemoryOverlap) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
