// SPDX-License-Identifier: Apache-2.0
#include "schedule/route.h"

#include <cmath>

namespace ladder {
namespace {

/// Half of the codes are below the zero point.
bool in_the_middle(const Problem& problem) {
  return problem.weight.stored_zero == Zero::none &&
         problem.weight.zero << 1 == 1 << (problem.weight.bits + problem.weight.shift);
}

}  // namespace

bool takes_zero_product(const Problem& problem, Route route) {
  const bool stored = problem.weight.stored_zero != Zero::none;
  switch (route) {
    case Route::in_place: return true;
    case Route::multiply_add: return stored && problem.weight.stored_zero != Zero::integer;
    case Route::digits: return stored || problem.weight.zero != 0;
    case Route::bytes:
      if (stored)
        return problem.weight.stored_zero != Zero::integer || problem.weight.bits > kMostOffsetBits;
      return problem.weight.element == nullptr && problem.weight.zero != 0 &&
             !in_the_middle(problem) &&
             // A zero point between two codes takes one more bit.
             problem.weight.bits + problem.weight.shift > kMostOffsetBits;
  }
  return true;
}

bool subtracts_zero(const Problem& problem, Route route) {
  const bool zero = problem.weight.zero != 0 || problem.weight.stored_zero != Zero::none;
  // Bytes of e4m3 have no sign of their own.
  return route == Route::bytes && zero && !takes_zero_product(problem, route) &&
         (problem.rounded_x() == Scalar::e4m3 || !in_the_middle(problem));
}

CodeBytes code_bytes(const Problem& problem, Route route, bool takes_unsigned) {
  if (route == Route::bytes && problem.rounded_x() == Scalar::e4m3) {
    return {false, false, whole_byte_plan(problem.weight.bits, problem.weight.shift), {}};
  }
  const bool zero = problem.weight.zero != 0 || problem.weight.stored_zero != Zero::none;
  const bool has_sign =
      !takes_unsigned || (route == Route::bytes && zero && !takes_zero_product(problem, route));
  const bool less = subtracts_zero(problem, route);
  const bool below_sign =
      has_sign && (less || (problem.weight.zero == 0 && problem.weight.bits <= kMostOffsetBits));
  const BytePlan& plan = !has_sign    ? byte_plan(problem.weight.bits)
                         : below_sign ? offset_byte_plan(problem.weight.bits)
                                      : signed_byte_plan(problem.weight.bits);
  CodeBytes out{has_sign, below_sign, plan, {}};
  if (less || problem.weight.stored_zero != Zero::none) return out;
  // In the unit of zero points; with a flipped sign codes are less the middle of all.
  const int there =
      has_sign && !below_sign ? 1 << (problem.weight.bits - 1 + problem.weight.shift) : 0;
  for (std::size_t i = 0; i < 2; ++i) {
    out.zero[i] = std::ldexp(there - problem.weight.zero, plan.offset[i] - problem.weight.shift);
  }
  return out;
}

}  // namespace ladder
