// SPDX-License-Identifier: Apache-2.0
#include "schedule/route.h"

#include "layout/digits.h"

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
  return route == Route::bytes && zero && !takes_zero_product(expr, route) && !in_the_middle(expr);
}

}  // namespace ladder
