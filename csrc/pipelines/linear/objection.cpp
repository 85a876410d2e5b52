// SPDX-License-Identifier: Apache-2.0
#include "pipelines/linear/objection.h"

#include <cmath>

#include "base/joined.h"
#include "layout/in_place.h"

namespace ladder {

std::string code_objection(Route route, ScalePlace place, const Decisions& decisions) {
  const Linear& expr = decisions.expr;
  if (place == ScalePlace::operands) {
    if (auto why = no_scaled_operands(expr); !why.empty()) return why;
  }
  if (place == ScalePlace::sums && !expr.scale) return "no scales for sums";
  if (route == Route::in_place) {
    if (expr.element != nullptr) return joined(expr.element->name, " is no integer");
    if (expr.shift != 0) return "a zero point between two codes";
    if (!fits_in_place(expr.bits, expr.activation)) {
      return joined("codes of ", expr.bits, " bits are no ", name_of(expr.activation), " in place");
    }
    const InPlace& codes = in_place(expr.bits, expr.activation);
    if ((expr.zero != 0 || codes.base != 0) && expr.stored_zero != Zero::none) {
      return "a constant and a stored zero point";
    }
    for (int exponent : codes.exponent) {
      const double zero = codes.base + std::ldexp(expr.zero, exponent);
      if (to_number(expr.activation, to_bits(expr.activation, zero)) != zero) {
        return joined("a zero point of ", expr.zero, " is no ", name_of(expr.activation),
                      " in place");
      }
    }
  }
  return {};
}

}  // namespace ladder
