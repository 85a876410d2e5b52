// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/registers.h"

#include <algorithm>

#include "layout/weight_image.h"
#include "program/program.h"
#include "schedule/decoding_cost.h"

namespace ladder {
namespace {

// Parts and phases of signals, and addresses of copies; what NVRTC 13.0 uses.
constexpr int kSignalRegisters = 20;

// Of several tiles per CTA, with and without, of types without stored zero points.
int registers_of_tiles(const Problem& problem) {
  const auto kind = decoding_kind(problem);
  if (kind == Decoding::Kind::table || problem.weight.bits == 8) return 0;
  const bool fields = kind == Decoding::Kind::fields;
  if (problem.weight.bits == 7 && fields) return 65;
  if (problem.weight.bits == 5) return 20;
  return problem.weight.bits == 3 && fields ? 28 : 16;
}

/// Columns of the groups for which registers of sums and scales were fitted.
constexpr std::int64_t kNarrowGroup = 32;

// Groups narrower than a k-tile have scales and zero points of their own in it.
int group_registers(const DecodeSchedule& s, const Problem& problem) {
  const auto columns = kBlock * s.blocks_per_warp;
  const auto groups = static_cast<int>(columns / std::min(problem.group_size(), columns));
  const bool apart = s.signalled() != nullptr, few_tokens = s.tokens <= 8;
  if (groups == 1 || (!apart && s.tiles_per_cta() == 1)) return 0;
  if (problem.weight.stored_zero != Zero::none) {
    if (apart) return few_tokens ? 0 : 101;
    return 12 * s.register_stages()->stages * (groups - 1);  // of several tiles per CTA
  }
  // In place, bfloat16 has ones in its sums beside the codes.
  if (s.route == Route::in_place && problem.activation() == Scalar::bf16 &&
      problem.weight.bits == 4 && s.bulk_copy() != nullptr && groups == 2 && s.k_tiles() > 2) {
    return 65;
  }
  const bool scaled = scales_operands(problem, s.scale_place);
  if (few_tokens || scaled || problem.group_size() > kNarrowGroup) return 0;
  // With scales of float16, four groups apart: 165 of 171 spilled, all but some of one bit.
  if (apart) return groups > 2 && problem.weight.scale != Scalar::e8m0 ? 129 : 59;
  // Of floats and tables with scales of float16, many do not spill.
  if (groups == 2 || (problem.weight.scale != Scalar::e8m0 && problem.weight.element != nullptr))
    return 0;
  if (s.bulk_copy() != nullptr) return 33;
  return s.route == Route::in_place ? 129 : 64;
}

// With more than 16 tokens: by the survey of tiles/registers.cpp.
int many_token_registers(const DecodeSchedule& s, const Problem& problem) {
  if (s.tokens <= 16) return 0;
  const int bits = problem.weight.bits;
  const bool narrow = problem.group_size() <= kNarrowGroup;
  if (s.signalled() != nullptr) {
    if (narrow) return 8;
    if (bits == 5) return s.blocks_per_warp > 1 ? 16 : 0;
    const bool even = (bits == 6 || bits == 8) && decoding_kind(problem) == Decoding::Kind::fields;
    return even && problem.activation() == Scalar::bf16 ? 48 : 0;
  }
  if (!narrow || s.tiles_per_cta() == 1) return 0;
  if (bits == 4) return 25;
  return s.register_stages()->stages > 1 ? 17 : 0;
}

// Fitted to the first eight choices of every cell of tests/compile/kernels_test.cpp. Beside what
// was dropped before them, floats of 7 bits by 65, not 56, these numbers drop 333 choices that
// spill and three that do not, of floats of 3 bits on a B200; on an H200 none.
int k_tile_registers(const DecodeSchedule& s, const Problem& problem) {
  const auto kind = decoding_kind(problem);
  const bool fields = kind == Decoding::Kind::fields, table = kind == Decoding::Kind::table;
  const int groups = group_registers(s, problem);
  if (s.signalled() != nullptr) {
    // With more tokens, or without a mantissa, some do not spill.
    const bool many = fields && problem.weight.bits == 7 &&
                      problem.weight.element->mantissa_bits > 0 && s.blocks_per_warp > 1 &&
                      s.tokens <= 8;
    return groups + (many ? 80 : 0);
  }
  const auto* w = s.register_stages();
  if (w == nullptr) return 0;
  if (w->tiles_per_cta > 1) return groups + registers_of_tiles(problem);
  const bool odd = problem.weight.bits % 2 != 0;  // four m16 tiles, not two
  if (s.bulk_copy() == nullptr || w->stages == 1 || !odd || table) return 0;
  return fields && problem.weight.bits == 3 ? 57 : 33;
}

// Of floats of 4 bits in narrow groups by experts, whose loads have an item's address beside the
// tile's: of 31 choices of mxfp4 and nvfp4 that these numbers drop 29 spilled.
int item_registers(const DecodeSchedule& s, const Problem& problem) {
  const bool narrow = problem.weight.bits == 4 && problem.group_size() <= kNarrowGroup &&
                      decoding_kind(problem) == Decoding::Kind::fields;
  const bool ahead = std::holds_alternative<weights::DoubleBuffered>(s.weights) && s.k_tiles() > 1;
  if (problem.experts() == nullptr || !narrow || !ahead || s.tokens > 8) return 0;
  if (s.blocks_per_warp > 1) return 17;
  return joins_powers(problem) ? 8 : 0;
}

/// K-tiles whose words have registers.
int k_tiles_in_flight(const DecodeSchedule& s) {
  return std::visit(Match{[](const weights::AtOnce&) { return 1; },
                          [](const weights::DoubleBuffered&) { return 2; },
                          [](const weights::Ring&) { return 1; },
                          [](const weights::RegisterStages& w) { return w.stages; }},
                    s.weights);
}

}  // namespace

int registers_of_thread(const DecodeSchedule& s, const Problem& problem) {
  const bool several = s.k_tiles() > 1;
  const auto words = k_tiles_in_flight(s) * s.m16_tiles * problem.weight.bits * s.blocks_per_warp;
  const bool narrow = problem.group_size() < std::int64_t{kBlock} * s.blocks_per_warp;
  const auto sums = (several || narrow ? 2 : 1) * s.m16_tiles * s.tokens / 2;
  // Of the zero point: of each k-tile where all tiles of rows share them.
  const auto zero_sums = s.tiles_per_cta() > 1 && s.activation_stages() == 0 ? s.k_tiles() : 2;
  return words + sums + 16 +
         (several && s.route != Route::multiply_add ? s.tokens / 2 * zero_sums : 0) +
         decoding_registers(problem, s.scale_place) +
         (s.signalled() != nullptr ? kSignalRegisters : 0) + k_tile_registers(s, problem) +
         item_registers(s, problem) + many_token_registers(s, problem);
}

}  // namespace ladder
