// SPDX-License-Identifier: Apache-2.0
#include "schedule/route.h"

#include <cmath>

namespace ladder {
namespace {

/// Half of the codes are below the zero point.
bool in_the_middle(const Linear& expr) {
  return expr.stored_zero == Zero::none && expr.zero << 1 == 1 << (expr.bits + expr.shift);
}

}  // namespace

bool takes_zero_product(const Linear& expr, Route route) {
  const bool stored = expr.stored_zero != Zero::none;
  switch (route) {
    case Route::in_place: return true;
    case Route::multiply_add: return stored && expr.stored_zero != Zero::integer;
    case Route::digits: return stored || expr.zero != 0;
    case Route::bytes:
      if (stored) return expr.stored_zero != Zero::integer || expr.bits > kMostOffsetBits;
      return expr.element == nullptr && expr.zero != 0 && !in_the_middle(expr) &&
             // A zero point between two codes takes one more bit.
             expr.bits + expr.shift > kMostOffsetBits;
  }
  return true;
}

bool subtracts_zero(const Linear& expr, Route route) {
  const bool zero = expr.zero != 0 || expr.stored_zero != Zero::none;
  // Bytes of e4m3 have no sign of their own.
  return route == Route::bytes && zero && !takes_zero_product(expr, route) &&
         (expr.rounded_x == Scalar::e4m3 || !in_the_middle(expr));
}

CodeBytes code_bytes(const Linear& expr, Route route, bool takes_unsigned) {
  if (route == Route::bytes && expr.rounded_x == Scalar::e4m3) {
    return {false, false, whole_byte_plan(expr.bits, expr.shift), {}};
  }
  const bool zero = expr.zero != 0 || expr.stored_zero != Zero::none;
  const bool has_sign =
      !takes_unsigned || (route == Route::bytes && zero && !takes_zero_product(expr, route));
  const bool less = subtracts_zero(expr, route);
  const bool below_sign = has_sign && (less || (expr.zero == 0 && expr.bits <= kMostOffsetBits));
  const BytePlan& plan = !has_sign    ? byte_plan(expr.bits)
                         : below_sign ? offset_byte_plan(expr.bits)
                                      : signed_byte_plan(expr.bits);
  CodeBytes out{has_sign, below_sign, plan, {}};
  if (less || expr.stored_zero != Zero::none) return out;
  // In the unit of zero points; with a flipped sign codes are less the middle of all.
  const int there = has_sign && !below_sign ? 1 << (expr.bits - 1 + expr.shift) : 0;
  for (std::size_t i = 0; i < 2; ++i) {
    out.zero[i] = std::ldexp(there - expr.zero, plan.offset[i] - expr.shift);
  }
  return out;
}

}  // namespace ladder
