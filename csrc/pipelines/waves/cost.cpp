// SPDX-License-Identifier: Apache-2.0
// What a wave kernel is expected to take. Nothing here was measured: no such GPU was at hand. The
// numbers are counts of instructions at the rates of the device's row, and published figures.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/waves/schedule.h"
#include "schedule/decoding_cost.h"

namespace ladder {
namespace {

// Matrix and vector instructions of several waves run beside each other; of one, in part.
constexpr double kOverlap = 4;
// Of the read rate, where loads begin when they are needed and other waves hide the wait. Guessed.
constexpr double kBehind = 0.7;
// Of the clocks of a k-tile, where it has a second barrier. Waves that alternate have more, and
// share the matrix units better: what that makes together nobody has published for operands that
// are decoded, so that they cost what waves cost that do not, and come behind these.
constexpr double kOfOneStage = 1.5;

/// Instructions for four bytes of floats beyond those that decoding_cycles() counts, which are
/// CUDA's: of fnuz_bytes(), unsigned_zeros() and whole_less_zeros() of the prelude.
double more_of_float_bytes(const Problem& problem, const MatrixInstruction& row) {
  constexpr double kFnuz = 10, kUnsigned = 4, kLessZeros = 6;
  if (problem.rounded_x() != Scalar::e4m3) return 0;
  if (problem.weight.element == nullptr) {
    return subtracts_zero(problem, Route::bytes) ? kLessZeros : 0;
  }
  if (operand_scalar(row) != Scalar::e4m3fnuz) return 0;
  return problem.weight.bits == 8 ? kFnuz : kUnsigned;
}

/// Of 16 rows by 64 columns of 32 lanes.
double operations_of_unit(const Problem& problem, const Device& device, const WaveSchedule& s) {
  return decoding_cycles(problem, device, s.route, s.scale_place) / kIntegerCycles;
}

double fullest(double groups, double places) {
  return std::ceil(groups / places) * places / groups;
}

}  // namespace

Cost cost(const WaveSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const Costs::Waves& costs = device.costs.waves;
  const MatrixInstruction& row = *instruction_of(s, decisions);
  const CtaGrid grid = grid_of(s, problem);
  const double groups = static_cast<double>(grid.count() * problem.products());
  const double steps = static_cast<double>(s.columns) / row.step_columns(),
               tokens = s.wave_tokens();
  const double pieces = static_cast<double>(kWaveRows) / row.step_rows();

  // Clocks of a SIMD for one k-tile of one wave. decoding_cycles() counts two for an operation on
  // integers and is of 16 rows by 64 columns of 32 lanes, of which a wave has 8 at once in half as
  // many instructions.
  const bool bytes = s.route == Route::bytes;
  // Of the rate of float16.
  const double faster = operations_per_second(device, row) / device.f16_flops;
  const double matrix_clocks = static_cast<double>(row.copies) * row.m * row.n * row.k /
                               (faster * device.f16_lanes / device.schedulers);
  const bool integers = problem.rounded_x() == Scalar::s8;  // beside floats none has such a product
  const bool product =
      bytes ? integers && (takes_zero_product(problem, s.route) ||
                           code_bytes(problem, s.route, row.takes_unsigned()).zero[0] != 0)
            : s.route == Route::in_place && problem.activation() == Scalar::bf16;
  double products = (pieces + (product ? 1 : 0)) * tokens / row.n * steps * matrix_clocks;
  const double words = static_cast<double>(kWaveRows) * s.columns / kWaveLanes / 4;  // of a lane
  const double operations = words * more_of_float_bytes(problem, row) +
                            operations_of_unit(problem, device, s) * (kWaveRows / 16.0) / 2 *
                                (static_cast<double>(s.columns) / kBlock);
  const bool by_f32 = problem.activation() == Scalar::bf16 && s.route == Route::multiply_add;
  const double rows_of_lane = s.products == WaveProducts::dots ? pieces : 4 * pieces;
  const double packed = by_f32 ? 2.2 : 1;
  const double scaling = keeps_totals(s, problem)
                             ? static_cast<double>(groups_of_wave(s, problem)) *
                                   (2 * tokens * row.parts() + rows_of_lane)
                             : 0;
  const double loads = 2 * tokens / row.n * steps;
  // RDNA 3 decodes operands in both halves of a wave, Volta in two quad pairs.
  const bool in_both = row.fragment == Fragment::wmma_twice || row.fragment == Fragment::quad_pairs;
  const double twice = in_both ? 2 : 1;
  double vector = (operations * packed * twice + scaling + loads) * costs.issue_clocks +
                  costs.tile_clocks * (s.stages == 1 ? kOfOneStage : 1);
  // Dot products are vector instructions.
  if (s.products == WaveProducts::dots) vector += std::exchange(products, 0);
  const double waves = static_cast<double>(s.waves());
  const double resident =
      std::min<double>(s.groups_per_cu, std::ceil(groups / device.multiprocessors));
  const double alone =
      resident * waves * kWaveLanes / device.warp <= device.schedulers ? costs.alone : 1;

  Cost out{};
  out.issue_seconds = (std::max(products, vector) + costs.beside * std::min(products, vector)) *
                      alone * s.k_tiles * waves * groups /
                      (device.clock() * device.schedulers * device.multiprocessors);
  const double least = least_bytes(problem, problem.m);
  const double tile_codes = static_cast<double>(s.rows()) * static_cast<double>(s.tile_columns()) *
                            problem.weight.bits / 8;
  const double x_bytes = static_cast<double>(s.tokens) * static_cast<double>(s.tile_columns()) *
                         bytes_of(problem.formats.x);
  const double in_flight = resident * (tile_codes + x_bytes) * (s.k_tiles > 1 ? 1 : 0.5);
  const double hidden = std::min(in_flight / costs.bytes_in_flight, 1.0) * (s.behind ? kBehind : 1);
  const double sums = static_cast<double>(s.rows()) * s.tokens * 4;
  const double through_cache =
      groups * (s.k_tiles * (tile_codes + x_bytes) + (grid.splits > 1 ? 2 * sums : 0));
  out.memory_seconds = least / (costs.reached * device.global.bytes_per_second) / hidden;
  if (const double rate = device.l2.bytes_per_second; rate > 0) {
    out.memory_seconds = std::max(out.memory_seconds, through_cache / rate);
  }
  const double read = std::max<double>(tokens, row.step_rows() / row.parts()) * row.step_columns() *
                      bytes_of(problem.formats.x) * steps * waves;
  out.shared_seconds = (read + x_bytes) * s.k_tiles * groups / device.shared_bytes_per_second();
  out.fixed_seconds =
      costs.launch_seconds + (s.reduction == Reduction::ordered ? costs.ticket_seconds : 0);
  const double uneven = fullest(groups, device.multiprocessors);
  const double work = std::max(out.issue_seconds, out.shared_seconds) * uneven;
  out.seconds = std::pow(std::pow(out.memory_seconds * std::sqrt(uneven), kOverlap) +
                             std::pow(work, kOverlap),
                         1 / kOverlap) +
                out.fixed_seconds;
  return out;
}

}  // namespace ladder
