// SPDX-License-Identifier: Apache-2.0
// What a tile kernel is expected to take.
#include <algorithm>
#include <cmath>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/tiles/schedule.h"
#include "schedule/decoding_cost.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

// Of tiles by warps nothing was fitted. What is said to be measured was so in decode kernels, the
// rest is guessed.

// Beside a matrix instruction each other instruction takes about a clock of its scheduler, on
// whatever pipe (docs/dev/notebook_gpu.md, sixteen tokens), where decoding_cycles() counts two for
// operations on integers.
constexpr double kBeside = 0.55;
// Of a pair of scales: conversions and products.
constexpr double kScaleCycles = 4;
// A load-matrix of four matrices, with its address.
constexpr double kLoadMatrixCycles = 3;
// A barrier, a wait and the addresses of a k-tile, of each warp.
constexpr double kTileCycles = 150;
// How much longer the matrix instructions of 1, 2 and 3 warps of a scheduler take: they wait for
// operands and for each other's barriers.
constexpr double kAlone[] = {1.6, 1.12, 1.04};
// Of a multiprocessor, on their way: fewer do not reach the read rate (docs/dev/notebook_gpu.md).
constexpr double kBytesInFlight = 40960;
constexpr double kOverlap = 4;
// Seconds: launch and first bytes; adding up in a cluster, as warpgroups do; a ticket and its
// fences.
constexpr double kLaunch = 3.7e-6, kCluster = 4e-6, kTicket = 1.3e-6;

/// In which a scheduler issues one matrix instruction. What is not published counts as on the
/// device on which the rest was fitted.
double matrix_cycles(const Device& device, const MatrixInstruction& mma) {
  const double rate = operations_per_second(device, mma);
  if (rate <= 0) return matrix_cycles(ladder::device(fitted::kFittedOn), mma);
  return 2.0 * mma.m * mma.n * mma.k * fitted::carried_to(device).clock * device.schedulers *
         device.multiprocessors / rate;
}

double fullest(double ctas, double places) { return std::ceil(ctas / places) * places / ctas; }

}  // namespace

Cost cost(const TileSchedule& s, const Decisions& decisions) {
  if (s.warpgroups) return cost_of_warpgroups(s, decisions);
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const auto carried = fitted::carried_to(device);
  const MatrixInstruction& mma = *decisions.of(s.route).core.instruction;
  const CtaGrid grid = grid_of(s, problem);
  const double ctas = static_cast<double>(grid.count() * problem.products());
  const double steps = static_cast<double>(s.columns) / mma.k;  // of a k-tile
  const double units = static_cast<double>(s.units()),
               tokens = static_cast<double>(s.warp_tokens());
  const double groups = static_cast<double>(groups_of_tile(s, problem));
  const bool totals = keeps_totals(s, problem);
  const bool product = takes_zero_product(problem, s.route);

  // Cycles of one scheduler for one k-tile of one warp.
  const double mma_cycles = matrix_cycles(device, mma);
  const double products = (units + (product ? 1 : 0)) * tokens / mma.n * steps;
  const double decoding = kBeside * units * decoding_cycles(problem, s.route, s.scale_place) *
                          steps / (static_cast<double>(kBlock) / mma.k);
  const double scaling = totals ? groups * units * (tokens / 2 + kScaleCycles) : 0;
  const double loads = kLoadMatrixCycles * steps * tokens / 16;
  const double warp = products * mma_cycles + decoding + scaling + loads + kTileCycles;
  const double warps = static_cast<double>(s.warps_n) * s.warps_m;
  const double per_sm = ctas / device.multiprocessors;
  const double resident = std::min<double>(s.ctas_per_sm, std::ceil(per_sm));
  const auto together = static_cast<std::size_t>(resident * warps / device.schedulers);
  const double alone = together == 0                  ? 2 * kAlone[0]
                       : together > std::size(kAlone) ? 1
                                                      : kAlone[together - 1];

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
  const double hidden =
      std::min(in_flight / (kBytesInFlight * carried.wave_bytes / fitted::kWaveBytes), 1.0);
  out.memory_seconds =
      std::max(bytes / device.global.bytes_per_second / hidden, fill > 0 ? filled / fill : 0);
  const double read = tokens * mma.k * bytes_of(problem.formats.x) * steps;  // by load-matrix
  out.shared_seconds = (read * warps + 2 * (tile_codes + x_bytes)) * s.k_tiles * ctas /
                       device.shared_bytes_per_second();
  out.fixed_seconds = kLaunch + (s.reduction == Reduction::cluster   ? kCluster
                                 : s.reduction == Reduction::ordered ? kTicket
                                                                     : 0);
  const double uneven = fullest(ctas, device.multiprocessors);
  const double instructions = std::max(out.issue_seconds, out.shared_seconds) * uneven;
  out.seconds = std::pow(std::pow(out.memory_seconds, kOverlap) + std::pow(instructions, kOverlap),
                         1 / kOverlap) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
