// SPDX-License-Identifier: Apache-2.0
//
// Codes that are operands where they lie: a mask, at most a shared shift, no arithmetic.
//
// A code at bit o of a float16 is the number code * 2^(o - 24), for its lowest two binades are
// linear and the matrix instruction takes subnormals. Products with such numbers of bfloat16 would
// be too small for f32. There the code lies in the mantissa of a number of [1, 2), joined by the
// mask's own operation: 1 + code * 2^(o - 7). The ones are taken back with the zero point, by the
// product that it has anyway. So that little of the sum is lost to them, o is at least 3: the ones
// are at most 16 times the smallest code.
#pragma once

#include <array>
#include <cstdint>

#include "layout/bit_plan.h"
#include "types/scalar.h"

namespace ladder {

struct InPlace {
  UnpackPlan plan;              ///< Align::rows: a pair's offset depends on its parity alone
  std::uint32_t joined;         ///< what is ORed to each half
  double base;                  ///< the number of `joined`: an operand is base + code * 2^exponent
  std::array<int, 2> exponent;  ///< by parity of eight rows
};

bool fits_in_place(int bits, Scalar operand);
/// Throws InvalidArgument where codes of `bits` bits do not fit.
const InPlace& in_place(int bits, Scalar operand);

}  // namespace ladder
