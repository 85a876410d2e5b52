// SPDX-License-Identifier: Apache-2.0
// What a tile kernel is expected to take.
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

// Memory and instructions overlap in part: the exponent of the sum of their powers.
constexpr double kOverlap = 4;

/// In which a scheduler issues one matrix instruction. What is not published counts as on the
/// machine on which the rest was fitted, where e4m3 is multiplied as float16.
double matrix_cycles(const Device& device, const MatrixInstruction& mma) {
  const double operations = 2.0 * mma.m * mma.n * mma.k;
  const double rate = operations_per_second(device, mma);
  if (rate <= 0) {
    const Costs& costs = device.costs;
    const bool integers = mma.accumulator == Scalar::s32;
    return operations * costs.clock /
           (integers ? costs.at.warp_integer_flops : costs.at.warp_flops);
  }
  return operations * fitted::carried_to(device).clock * device.schedulers *
         device.multiprocessors / rate;
}

double fullest(double ctas, double places) { return std::ceil(ctas / places) * places / ctas; }

}  // namespace

Cost cost(const TileSchedule& s, const Decisions& decisions) {
  if (s.warpgroups) return cost_of_warpgroups(s, decisions);
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const Costs::Tiles& costs = device.costs.tiles;
  const auto carried = fitted::carried_to(device);
  const MatrixInstruction& mma = *decisions.of(s.route).core.instruction;
  const CtaGrid grid = grid_of(s, problem);
  const double ctas = static_cast<double>(grid.count() * problem.products());
  const double steps = static_cast<double>(s.columns) / mma.k;  // of a k-tile
  const double units = static_cast<double>(s.units()),
               tokens = static_cast<double>(s.warp_tokens());
  const double groups = static_cast<double>(scaled_sums(s, problem));
  const bool totals = keeps_totals(s, problem);
  const bool product = takes_zero_product(problem, s.route);

  // Cycles of one scheduler for one k-tile of one warp.
  const double mma_cycles = matrix_cycles(device, mma);
  const double products = (units + (product ? 1 : 0)) * tokens / mma.n * steps;
  const double decoding = costs.beside * units *
                          decoding_cycles(problem, device, s.route, s.scale_place) * steps /
                          (static_cast<double>(kBlock) / mma.k);
  const double scaling = totals ? groups * units * (tokens / 2 + costs.scale_cycles) : 0;
  const double loads = costs.load_matrix_cycles * steps * tokens / 16;
  const double warps = static_cast<double>(s.warps_n) * s.warps_m;
  const int granule = decisions.of(s.route).hint.granularity_bytes;
  const double windows = window_cycles(s, problem, granule) / warps;
  const double warp =
      products * mma_cycles + decoding + scaling + loads + windows + costs.tile_cycles;
  const double per_sm = ctas / device.multiprocessors;
  const double resident = std::min<double>(s.ctas_per_sm, std::ceil(per_sm));
  const auto together = static_cast<std::size_t>(resident * warps / device.schedulers);
  const double alone = together == 0                   ? 2 * costs.alone[0]
                       : together > costs.alone.size() ? 1
                                                       : costs.alone[together - 1];

  Cost out{};
  out.issue_seconds = warp * s.k_tiles * warps * ctas * alone /
                      (carried.clock * device.schedulers * device.multiprocessors);
  const double bytes = least_bytes(problem, problem.m);
  const double tile_codes = static_cast<double>(s.rows) * s.columns * problem.weight.bits / 8;
  const double x_bytes = static_cast<double>(s.tokens) * s.columns * bytes_of(problem.formats.x);
  const double sums = static_cast<double>(s.rows) * s.tokens * 4 * (grid.splits > 1 ? 2 : 0) *
                      (s.reduction == Reduction::ordered ? 1 : 0.5);
  const double filled = ctas * (s.k_tiles * (tile_codes + x_bytes) + sums);
  const double fill = device.fill_bytes_per_second();
  const double in_flight = resident * (s.stages - 1) * (tile_codes + x_bytes);
  const double hidden = std::min(in_flight / (costs.bytes_in_flight * carried.hidden), 1.0);
  out.memory_seconds =
      std::max(bytes / device.global.bytes_per_second / hidden, fill > 0 ? filled / fill : 0);
  const double read = tokens * mma.k * bytes_of(problem.formats.x) * steps;  // by load-matrix
  out.shared_seconds = (read * warps + 2 * (tile_codes + x_bytes)) * s.k_tiles * ctas /
                       device.shared_bytes_per_second();
  out.fixed_seconds =
      costs.launch_seconds + (s.reduction == Reduction::cluster   ? costs.cluster_seconds
                              : s.reduction == Reduction::ordered ? costs.ticket_seconds
                                                                  : 0);
  const double uneven = fullest(ctas, device.multiprocessors);
  const double instructions = std::max(out.issue_seconds, out.shared_seconds) * uneven;
  out.seconds = std::pow(std::pow(out.memory_seconds, kOverlap) + std::pow(instructions, kOverlap),
                         1 / kOverlap) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
