// SPDX-License-Identifier: Apache-2.0
#include "schedule/decoding_cost.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "layout/bit_plan.h"
#include "layout/digits.h"
#include "layout/field_plan.h"
#include "layout/in_place.h"
#include "layout/lookup_plan.h"
#include "layout/weight_image.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

constexpr double kInteger = 2, kPacked = 1, kLookup = 4;

double field_cycles(const Decoding& decoding, Scalar activation) {
  const FloatFields& f = decoding.fields;
  const FieldPlan& plan = field_plan(f.bits, f.place);
  // A sum and a mask find codes that are no numbers; bf16 spreads the carry by one more product.
  const double special = f.special == 0 ? 0 : kInteger * (activation == Scalar::f16 ? 2 : 4);
  const bool product = f.factor != 1 || decoding.scaled;
  const double factor = (product ? kPacked : 0) + (f.halved ? 2 * kInteger : 0);
  return kInteger * (plan.mask_count() + plan.right_shift_count()) +
         kPacked * plan.left_shift_count() + kPairsPerUnit * (special + factor);
}

// Masks and shifts, a sum of products and a look-up for each index, and one to join two values.
double lookup_cycles(int bits) {
  const bool joint = bits <= kLargestPairTable;
  std::set<std::pair<int, int>> shifts;
  double operations = 0, lookups = 0;
  for (const auto& pair : lookup_plan(bit_plan(bits), joint)) {
    for (const auto& piece : pair.pieces) {
      operations += piece.mask != ~0u;
      if (piece.shift != 0) shifts.insert({piece.word, piece.shift});
    }
    operations += static_cast<double>(pair.weights.size()) + (joint ? 0 : 1);
    lookups += static_cast<double>(pair.weights.size());
  }
  return kInteger * (operations + static_cast<double>(shifts.size())) + kLookup * lookups;
}

// With and without, of types without stored zero points.
int deep_sweep_registers(const Linear& expr) {
  const auto kind = decoding_kind(expr);
  if (kind == Decoding::Kind::table || expr.bits == 8) return 0;
  const bool fields = kind == Decoding::Kind::fields;
  if (expr.bits == 7 && fields) return 65;
  if (expr.bits == 5) return 20;
  return expr.bits == 3 && fields ? 28 : 16;
}

/// Columns of the groups for which registers of sums and scales were fitted.
constexpr std::int64_t kNarrowGroup = 32;

// Groups narrower than a round have scales and zero points of their own in it.
int group_registers(const Schedule& s, const Linear& expr) {
  const auto columns = kBlock * s.blocks_per_warp;
  const auto groups = static_cast<int>(columns / std::min(expr.group_size(), columns));
  const bool apart = s.x_slack > 0, few_tokens = s.tokens <= 8;
  if (groups == 1 || (!apart && s.sweeps == 1)) return 0;
  if (expr.stored_zero != Zero::none) {
    if (apart) return few_tokens ? 0 : 101;
    return 12 * s.depth * (groups - 1);
  }
  // In place, bfloat16 has ones in its sums beside the codes.
  if (s.route == Route::in_place && expr.activation == Scalar::bf16 && expr.bits == 4 &&
      s.sharers > 0 && groups == 2 && s.rounds > 2) {
    return 65;
  }
  const bool fields = decoding_kind(expr) == Decoding::Kind::fields;
  const bool scaled = fields && decoding_of(expr, s.scale_place).scaled;
  if (few_tokens || scaled || expr.group_size() > kNarrowGroup) return 0;
  // With scales of float16, four groups apart: 165 of 171 spilled, all but some of one bit.
  if (apart) return groups > 2 && expr.scale != Scalar::e8m0 ? 129 : 59;
  // Of floats and tables with scales of float16, many do not spill.
  if (groups == 2 || (expr.scale != Scalar::e8m0 && expr.element != nullptr)) return 0;
  if (s.sharers > 0) return 33;
  return s.route == Route::in_place ? 129 : 64;
}

}  // namespace

double decoding_cycles(const Linear& expr, Route route, ScalePlace place) {
  switch (decoding_kind(expr)) {
    case Decoding::Kind::fields: return field_cycles(decoding_of(expr, place), expr.activation);
    case Decoding::Kind::table: return lookup_cycles(expr.bits);
    case Decoding::Kind::integers: break;
  }
  if (route == Route::digits) {
    // Beside masks and shifts a conversion of each sum, two a unit for groups of 128 columns.
    const BytePlan& plan = byte_plan(expr.bits);
    return kInteger * (plan.mask_count + plan.shift_count + (expr.three ? 2 * expr.bits : 0) + 2);
  }
  const auto plan = route == Route::in_place && fits_in_place(expr.bits, expr.activation)
                        ? in_place(expr.bits, expr.activation).plan
                        : unpack_plan(expr.bits, linear_window(expr.activation));
  const double codes = kInteger * (plan.mask_count() + plan.shift_count());
  const double three = expr.three ? 2 * kInteger * expr.bits : 0;  // by words
  return codes + three + (route != Route::multiply_add ? 0 : kPairsPerUnit * kPacked);
}

// Two scales a lane and group: by SASS of nvfp4 six operations on integers, two conversions and two
// products, then a multiply-add for each of the four sums of eight tokens.
double scaled_sums_cycles(const Linear& expr, const Schedule& s) {
  const bool chosen =
      s.scale_place == ScalePlace::sums && usual_scale_place(expr) == ScalePlace::operands;
  if (!chosen) return 0;
  const double groups = static_cast<double>(kBlock) / static_cast<double>(expr.group_size());
  return groups * (6 * kInteger + 4 * kPacked + s.tokens / 8 * 4 * kPacked);
}

// Fitted to the registers that NVRTC 13.0 gives kernels with and without.
int decoding_registers(const Linear& expr, ScalePlace place) {
  const auto kind = decoding_kind(expr);
  const bool table = kind == Decoding::Kind::table;
  const bool scaled = kind == Decoding::Kind::fields && decoding_of(expr, place).scaled;
  return (table ? 20 : 0) + (expr.stored_zero != Zero::none ? 24 : 0) +
         (expr.scale == Scalar::e4m3 && !scaled ? 30 : 0);
}

// Fitted to the first eight choices of every cell of tests/compile/kernels_test.cpp. Beside what
// was dropped before them, floats of 7 bits by 65, not 56, these numbers drop 333 choices that
// spill and three that do not, of floats of 3 bits on a B200; on an H200 none.
int round_registers(const Schedule& s, const Linear& expr) {
  const auto kind = decoding_kind(expr);
  const bool fields = kind == Decoding::Kind::fields, table = kind == Decoding::Kind::table;
  const int groups = group_registers(s, expr);
  if (s.x_slack > 0) {
    // With more tokens, or without a mantissa, some do not spill.
    const bool many = fields && expr.bits == 7 && expr.element->mantissa_bits > 0 &&
                      s.blocks_per_warp > 1 && s.tokens <= 8;
    return groups + (many ? 80 : 0);
  }
  if (s.depth == 0) return 0;
  if (s.sweeps > 1) return groups + deep_sweep_registers(expr);
  const bool odd = expr.bits % 2 != 0;  // four row units, not two
  if (s.sharers == 0 || s.depth == 1 || !odd || table) return 0;
  return fields && expr.bits == 3 ? 57 : 33;
}

int lookups_per_pair(const Linear& expr) {
  if (decoding_kind(expr) != Decoding::Kind::table) return 0;
  return expr.bits <= kLargestPairTable ? 1 : 2;
}

double lookup_latency(const Linear& expr) {
  return lookups_per_pair(expr) > 0 ? fitted::kLatencyOfLookups : 0;
}

double table_seconds(const Linear& expr, double clock) {
  if (decoding_kind(expr) != Decoding::Kind::table) return 0;
  const auto bytes = static_cast<double>(table_entries(expr.bits) * kLanes * 4);
  return fitted::kTableSeconds * bytes / fitted::kTableBytes * (fitted::kClock / clock);
}

}  // namespace ladder
