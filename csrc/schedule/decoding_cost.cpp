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

/// Of bytes, of the codes of a unit.
constexpr int kUnitRegisters = 8;

double field_cycles(const Decoding& decoding, Scalar activation) {
  const FloatFields& f = decoding.fields;
  const FieldPlan& plan = field_plan(f.bits, f.place);
  // A sum and a mask find codes that are no numbers; bf16 spreads the carry by one more product.
  const double special = f.special == 0 ? 0 : kIntegerCycles * (activation == Scalar::f16 ? 2 : 4);
  const bool product = f.factor != 1 || decoding.scaled;
  const double factor = (product ? kPackedCycles : 0) + (f.halved ? 2 * kIntegerCycles : 0);
  return kIntegerCycles * (plan.mask_count() + plan.right_shift_count()) +
         kPackedCycles * plan.left_shift_count() + kPairsPerUnit * (special + factor);
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
  return kIntegerCycles * (operations + static_cast<double>(shifts.size())) +
         kLookupCycles * lookups;
}

}  // namespace

double decoding_cycles(const Linear& expr, Route route, ScalePlace place) {
  if (place == ScalePlace::rounded) {
    // Integers of f16 with stored zero points are multiplied twice.
    const bool twice =
        expr.element == nullptr && expr.activation == Scalar::f16 && expr.stored_zero != Zero::none;
    const double product = kPairsPerUnit * kPackedCycles * (twice ? 2 : 1);
    if (decoding_kind(expr) != Decoding::Kind::fields) {
      return decoding_cycles(expr, route, ScalePlace::sums) + product;
    }
    return field_cycles(decoding_of(expr, place), expr.activation) + product;
  }
  switch (decoding_kind(expr)) {
    case Decoding::Kind::fields: return field_cycles(decoding_of(expr, place), expr.activation);
    case Decoding::Kind::table: return lookup_cycles(expr.bits);
    case Decoding::Kind::integers: break;
  }
  if (has_bytes(route)) {
    // Of digits a conversion of each sum, too, two a unit for groups of 128 columns.
    const bool less = subtracts_zero(expr, route), whole = expr.rounded_x == Scalar::e4m3;
    const bool has_sign = route == Route::bytes && !takes_zero_product(expr, route);
    const BytePlan& plan = whole      ? whole_byte_plan(expr.bits, expr.shift)
                           : less     ? offset_byte_plan(expr.bits)
                           : has_sign ? signed_byte_plan(expr.bits)
                                      : byte_plan(expr.bits);
    return kIntegerCycles *
           (plan.mask_count + plan.shift_count + (expr.three ? 2 * expr.bits : 0) +
            (route == Route::digits ? 2 : 0) + (less ? (whole ? 3 : 2) * kUnitRegisters : 0));
  }
  const auto plan = route == Route::in_place && fits_in_place(expr.bits, expr.activation)
                        ? in_place(expr.bits, expr.activation).plan
                        : unpack_plan(expr.bits, linear_window(expr.activation));
  const double codes = kIntegerCycles * (plan.mask_count() + plan.shift_count());
  const double three = expr.three ? 2 * kIntegerCycles * expr.bits : 0;  // by words
  return codes + three + (route != Route::multiply_add ? 0 : kPairsPerUnit * kPackedCycles);
}

// Fitted to the registers that NVRTC 13.0 gives kernels with and without.
int decoding_registers(const Linear& expr, ScalePlace place) {
  const auto kind = decoding_kind(expr);
  const bool table = kind == Decoding::Kind::table;
  const bool scaled = place == ScalePlace::rounded ||
                      (kind == Decoding::Kind::fields && decoding_of(expr, place).scaled);
  return (table ? 20 : 0) + (expr.stored_zero != Zero::none ? 24 : 0) +
         (expr.scale == Scalar::e4m3 && !scaled ? 30 : 0);
}

int lookups_per_pair(const Linear& expr) {
  if (decoding_kind(expr) != Decoding::Kind::table) return 0;
  return expr.bits <= kLargestPairTable ? 1 : 2;
}

double lookup_latency(const Linear& expr) {
  return lookups_per_pair(expr) > 0 ? fitted::kLatencyOfLookups : 0;
}

double table_seconds(const Linear& expr, const Device& device) {
  if (decoding_kind(expr) != Decoding::Kind::table) return 0;
  const auto bytes = static_cast<double>(table_entries(expr.bits) * kLanes * 4);
  const Costs& costs = device.costs;
  return costs.decode.table_seconds * bytes / costs.decode.table_bytes *
         (costs.clock / fitted::carried_to(device).clock);
}

}  // namespace ladder
