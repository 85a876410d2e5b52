// SPDX-License-Identifier: Apache-2.0
#include "schedule/route.h"

namespace ladder {

bool takes_zero_product(const Linear& expr, Route route) {
  const bool stored = expr.stored_zero != Zero::none;
  switch (route) {
    case Route::in_place: return true;
    case Route::multiply_add: return stored && expr.stored_zero != Zero::integer;
    case Route::digits: return stored || expr.zero != 0;
    case Route::bytes:
      return stored || (expr.element == nullptr && expr.zero != 0 &&
                        expr.zero << 1 != 1 << (expr.bits + expr.shift));
  }
  return true;
}

}  // namespace ladder
