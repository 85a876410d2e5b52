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
#include "schedule/decoding.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

/// Of bytes, of the codes of a unit.
constexpr int kUnitRegisters = 8;

/// Of relative operands of a unit: permutations of each register; of its words shifts, masks and
/// signs; of both rows in both k-steps a code, a difference, the lesser one, an address, a look-up.
constexpr double kRelativeOperations = 3 * kUnitRegisters + 5 * kRelativeBits + 2 * 2 * 5;

double field_cycles(const Decoding& decoding, const Problem& problem) {
  const FloatFields& f = decoding.fields;
  // A permutation and a conversion of two codes; bf16 by way of two f32.
  if (f.converted) {
    const bool bf16 = problem.activation() == Scalar::bf16;
    return kPairsPerUnit * (2 * kIntegerCycles + (bf16 ? kIntegerCycles + 2 * kPackedCycles : 0));
  }
  const FieldPlan& plan = field_plan(f.bits, f.place);
  // A sum and a mask find codes that are no numbers, or a magnitude, a comparison and a mask.
  const double more = f.sets_several() ? kPackedCycles : 0;
  const double special = f.special == 0 ? 0 : 2 * kIntegerCycles + more;
  const bool product = f.factor != 1 || decoding.scaled;
  const double factor = (product ? kPackedCycles : 0) + (f.halved ? 2 * kIntegerCycles : 0);
  return kIntegerCycles * (plan.mask_count() + plan.right_shift_count()) +
         kPackedCycles * plan.left_shift_count() + kPairsPerUnit * (special + factor);
}

/// Floats as bytes of e4m3 hold them. Others count as without bytes, and are refused.
bool are_float_bytes(const Problem& problem, Route route) {
  const Element* const e = problem.weight.element;
  return route == Route::bytes && e != nullptr && e->exponent_bits <= kByteExponent &&
         e->mantissa_bits <= kByteMantissa;
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

double decoding_cycles(const Problem& problem, const Device& device, Route route,
                       ScalePlace place) {
  if (place == ScalePlace::relative) return kIntegerCycles * kRelativeOperations;
  if (place == ScalePlace::rounded) {
    // Integers of f16 with stored zero points are multiplied twice.
    const bool twice = problem.weight.element == nullptr && problem.activation() == Scalar::f16 &&
                       problem.weight.stored_zero != Zero::none;
    const bool joins = joins_powers(problem) || joins_whole_scales(problem);
    const double product = joins ? 0 : kPairsPerUnit * kPackedCycles * (twice ? 2 : 1);
    if (decoding_kind(problem) != Decoding::Kind::fields) {
      return decoding_cycles(problem, device, route, ScalePlace::sums) + product;
    }
    return field_cycles(decoding_on(device, problem, place), problem) + product;
  }
  if (are_float_bytes(problem, route)) {
    const Element& e = *problem.weight.element;
    const BytePlan& plan = float_byte_plan(e.bits, e.mantissa_bits);
    return kIntegerCycles * (plan.mask_count + plan.shift_count);
  }
  switch (decoding_kind(problem)) {
    case Decoding::Kind::fields: return field_cycles(decoding_on(device, problem, place), problem);
    case Decoding::Kind::table: return lookup_cycles(problem.weight.bits);
    case Decoding::Kind::integers: break;
  }
  if (route == Route::bytes && scales_bytes(problem, place)) {
    const BytePlan& plan = whole_byte_plan(problem.weight.bits, 0);
    const int three = problem.weight.three ? 2 * problem.weight.bits : 0;
    return kIntegerCycles * (plan.mask_count + plan.shift_count + three + 2 * kUnitRegisters);
  }
  if (has_bytes(route)) {
    // Of digits a conversion of each sum, too, two a unit for groups of 128 columns.
    const bool less = subtracts_zero(problem, route), whole = problem.rounded_x() == Scalar::e4m3;
    const bool has_sign = route == Route::bytes && !takes_zero_product(problem, route);
    const BytePlan& plan = whole      ? whole_byte_plan(problem.weight.bits, problem.weight.shift)
                           : less     ? offset_byte_plan(problem.weight.bits)
                           : has_sign ? signed_byte_plan(problem.weight.bits)
                                      : byte_plan(problem.weight.bits);
    return kIntegerCycles *
           (plan.mask_count + plan.shift_count +
            (problem.weight.three ? 2 * problem.weight.bits : 0) +
            (route == Route::digits ? 2 : 0) + (less ? (whole ? 3 : 2) * kUnitRegisters : 0));
  }
  const Scalar operand = problem.activation();
  const UnpackPlan& plan = route == Route::in_place && fits_in_place(problem.weight.bits, operand)
                               ? in_place(problem.weight.bits, operand).plan
                               : unpack_plan(problem.weight.bits, linear_window(operand));
  const double codes = kIntegerCycles * (plan.mask_count() + plan.shift_count());
  const double three =
      problem.weight.three ? 2 * kIntegerCycles * problem.weight.bits : 0;  // by words
  return codes + three + (route != Route::multiply_add ? 0 : kPairsPerUnit * kPackedCycles);
}

// Fitted to the registers that NVRTC 13.0 gives kernels with and without.
int decoding_registers(const Problem& problem, ScalePlace place) {
  const bool table = decoding_kind(problem) == Decoding::Kind::table;
  const bool scaled = scales_operands(problem, place);
  return (table ? 20 : 0) + (problem.weight.stored_zero != Zero::none ? 24 : 0) +
         (problem.weight.scale == Scalar::e4m3 && !scaled ? 30 : 0);
}

int lookups_per_pair(const Problem& problem) {
  if (decoding_kind(problem) != Decoding::Kind::table) return 0;
  return problem.weight.bits <= kLargestPairTable ? 1 : 2;
}

double lookup_latency(const Problem& problem) {
  return lookups_per_pair(problem) > 0 ? fitted::kLatencyOfLookups : 0;
}

double table_seconds(const Problem& problem, const Device& device) {
  if (decoding_kind(problem) != Decoding::Kind::table) return 0;
  const auto bytes = static_cast<double>(table_entries(problem.weight.bits) * kLanes * 4);
  const Costs& costs = device.costs;
  return costs.decode.table_seconds * bytes / costs.decode.table_bytes *
         (costs.clock / fitted::carried_to(device).clock);
}

}  // namespace ladder
