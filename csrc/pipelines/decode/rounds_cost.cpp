// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/rounds_cost.h"

#include <algorithm>

#include "layout/weight_image.h"
#include "schedule/decoding_cost.h"

namespace ladder {
namespace {

// With and without, of types without stored zero points.
int deep_sweep_registers(const Problem& problem) {
  const auto kind = decoding_kind(problem);
  if (kind == Decoding::Kind::table || problem.weight.bits == 8) return 0;
  const bool fields = kind == Decoding::Kind::fields;
  if (problem.weight.bits == 7 && fields) return 65;
  if (problem.weight.bits == 5) return 20;
  return problem.weight.bits == 3 && fields ? 28 : 16;
}

/// Columns of the groups for which registers of sums and scales were fitted.
constexpr std::int64_t kNarrowGroup = 32;

// Groups narrower than a round have scales and zero points of their own in it.
int group_registers(const DecodeSchedule& s, const Problem& problem) {
  const auto columns = kBlock * s.blocks_per_warp;
  const auto groups = static_cast<int>(columns / std::min(problem.group_size(), columns));
  const bool apart = s.x_slack > 0, few_tokens = s.tokens <= 8;
  if (groups == 1 || (!apart && s.sweeps == 1)) return 0;
  if (problem.weight.stored_zero != Zero::none) {
    if (apart) return few_tokens ? 0 : 101;
    return 12 * s.depth * (groups - 1);
  }
  // In place, bfloat16 has ones in its sums beside the codes.
  if (s.route == Route::in_place && problem.activation() == Scalar::bf16 &&
      problem.weight.bits == 4 && s.sharers > 0 && groups == 2 && s.rounds > 2) {
    return 65;
  }
  const bool fields = decoding_kind(problem) == Decoding::Kind::fields;
  const bool scaled = fields && decoding_of(problem, s.scale_place).scaled;
  if (few_tokens || scaled || problem.group_size() > kNarrowGroup) return 0;
  // With scales of float16, four groups apart: 165 of 171 spilled, all but some of one bit.
  if (apart) return groups > 2 && problem.weight.scale != Scalar::e8m0 ? 129 : 59;
  // Of floats and tables with scales of float16, many do not spill.
  if (groups == 2 || (problem.weight.scale != Scalar::e8m0 && problem.weight.element != nullptr))
    return 0;
  if (s.sharers > 0) return 33;
  return s.route == Route::in_place ? 129 : 64;
}

}  // namespace

// Two scales a lane and group: by SASS of nvfp4 six operations on integers, two conversions and two
// products, then a multiply-add for each of the four sums of eight tokens.
double scaled_sums_cycles(const Problem& problem, const DecodeSchedule& s) {
  const bool chosen =
      s.scale_place == ScalePlace::sums && usual_scale_place(problem) == ScalePlace::operands;
  if (!chosen) return 0;
  const double groups = static_cast<double>(kBlock) / static_cast<double>(problem.group_size());
  return groups * (6 * kIntegerCycles + 4 * kPackedCycles + s.tokens / 8 * 4 * kPackedCycles);
}

// Fitted to the first eight choices of every cell of tests/compile/kernels_test.cpp. Beside what
// was dropped before them, floats of 7 bits by 65, not 56, these numbers drop 333 choices that
// spill and three that do not, of floats of 3 bits on a B200; on an H200 none.
int round_registers(const DecodeSchedule& s, const Problem& problem) {
  const auto kind = decoding_kind(problem);
  const bool fields = kind == Decoding::Kind::fields, table = kind == Decoding::Kind::table;
  const int groups = group_registers(s, problem);
  if (s.x_slack > 0) {
    // With more tokens, or without a mantissa, some do not spill.
    const bool many = fields && problem.weight.bits == 7 &&
                      problem.weight.element->mantissa_bits > 0 && s.blocks_per_warp > 1 &&
                      s.tokens <= 8;
    return groups + (many ? 80 : 0);
  }
  if (s.depth == 0) return 0;
  if (s.sweeps > 1) return groups + deep_sweep_registers(problem);
  const bool odd = problem.weight.bits % 2 != 0;  // four row units, not two
  if (s.sharers == 0 || s.depth == 1 || !odd || table) return 0;
  return fields && problem.weight.bits == 3 ? 57 : 33;
}

}  // namespace ladder
