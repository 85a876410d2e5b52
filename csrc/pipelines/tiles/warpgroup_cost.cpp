// SPDX-License-Identifier: Apache-2.0
// What a tile kernel of warpgroups is expected to take.
#include <algorithm>
#include <cmath>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/tiles/schedule.h"
#include "pipelines/tiles/window_cost.h"
#include "schedule/decoding_cost.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

/// What copies take from those who multiply.
const Costs::Pace& pace_of(const TileSchedule& s, const Costs::Warpgroups& costs) {
  if (!s.producers) return costs.together;
  // A ring of three stages leaves producers one to be ahead.
  return s.stages > 3 ? costs.far_apart : costs.apart;
}

// Decoding, products and copies overlap in part: exponents of the sum of their powers.
constexpr double kOverlap = 3, kMemoryOverlap = 4;

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
  const Costs::Warpgroups& costs = device.costs.warpgroups;
  const auto carried = fitted::carried_to(device);
  const MatrixInstruction& row = *product_row(s, problem, device);
  const CtaGrid grid = grid_of(s, problem);
  const Costs::Pace& pace = pace_of(s, costs);
  const auto units = static_cast<double>(s.units()), tokens = static_cast<double>(s.tokens);
  const double steps = static_cast<double>(s.columns) / row.k;  // of a k-tile
  const double warps = s.warps_n, groups = warps * 32 / row.lanes();
  const bool product = takes_zero_product(problem, s.route);

  const bool cluster = s.reduction == Reduction::cluster;
  // Tiles of tokens behind the last end at once.
  const auto of_tokens = std::min(grid.token_tiles, ceil_div(problem.m, std::int64_t{s.tokens}));
  const double ctas =
      static_cast<double>(grid.count() / grid.token_tiles * of_tokens * problem.products());
  const double places =
      std::round(device.multiprocessors * cluster_share(device, cluster ? grid.splits : 1));
  const double in_tail = static_cast<double>(s.tail_tiles) * s.tail_splits;
  const double waves = std::ceil((ctas - s.tail_tiles) / (places * s.ctas_per_sm));
  const double waves_of_tail = std::ceil(in_tail / (places * s.ctas_per_sm));
  const double resident =
      std::min<double>(s.ctas_per_sm, std::ceil(ctas / waves / device.multiprocessors));

  // Cycles of a multiprocessor for a k-tile of all that are on it.
  const double rate = operations_per_second(device, row) / (carried.clock * device.multiprocessors);
  const double least = groups * resident > 1 ? costs.least_product : 2 * costs.least_product;
  // Of a warpgroup, whose warps have 16 rows each in a unit.
  const double instructions_of_step = (units + (product ? 1 : 0)) * 4 * 16 / row.m * s.token_parts;
  const double of_instruction = tokens / s.token_parts;
  const double products =
      std::max(pace.product * 2 * row.m * of_instruction * row.k / rate, least) *
      instructions_of_step * groups * steps * resident;
  const double decoding = costs.decoding * units *
                          decoding_cycles(problem, device, s.route, s.scale_place) * s.columns /
                          kBlock;
  const double scaling =
      keeps_totals(s, problem) ? costs.scaling * units * tokens / 2 * scaled_sums(s, problem) : 0;
  const double storing = s.tensor_memory ? costs.store_cycles * units * steps : 0;
  const int granule = decisions.of(s.route).hint.granularity_bytes;
  const double instructions =
      ((decoding + scaling + storing + costs.step_cycles * steps + pace.tile_cycles) * warps +
       window_cycles(s, problem, granule)) /
      device.schedulers * resident;
  const double codes = static_cast<double>(s.rows) * s.columns * problem.weight.bits / 8;
  const double x = tokens * s.columns * bytes_of(problem.formats.x);
  const double copies = (codes + x) / costs.fill_bytes * resident;
  const double k_tile = std::pow(std::pow(products, kOverlap) + std::pow(instructions, kOverlap) +
                                     std::pow(copies, kOverlap),
                                 1 / kOverlap) +
                        pace.serial_cycles +
                        (s.tensor_memory ? costs.meeting_cycles * s.columns / kBlock : 0);

  Cost out{};
  const double cycles =
      (waves * s.k_tiles + waves_of_tail * static_cast<double>(tail_k_tiles(s))) / carried.clock;
  out.issue_seconds = k_tile * cycles;
  out.shared_seconds = copies * cycles;
  out.memory_seconds = least_bytes(problem, problem.m) / device.global.bytes_per_second;
  out.fixed_seconds = costs.launch_seconds + (cluster ? costs.cluster_seconds * waves : 0);
  // Of batches and convolutions nothing was fitted.
  if (problem.experts() != nullptr) out.fixed_seconds += costs.item_seconds / resident * waves;
  // Producers do not ask for weights before they wait.
  if (s.producers && s.dependent_launch) out.fixed_seconds += costs.weights_ahead_seconds;
  if (s.reduction == Reduction::ordered) {
    out.fixed_seconds += costs.ordered_sum_seconds * static_cast<double>(s.rows) * tokens *
                         static_cast<double>(grid.splits) * waves;
  }
  if (s.tail_tiles > 0) {
    out.fixed_seconds += costs.tail_seconds + costs.ordered_sum_seconds * s.rows * tokens *
                                                  s.tail_splits * waves_of_tail;
  }
  out.seconds = std::pow(std::pow(out.memory_seconds, kMemoryOverlap) +
                             std::pow(out.issue_seconds, kMemoryOverlap),
                         1 / kMemoryOverlap) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
