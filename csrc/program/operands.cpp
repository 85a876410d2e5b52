// SPDX-License-Identifier: Apache-2.0
#include "program/operands.h"

#include <cmath>

#include "layout/in_place.h"

namespace ladder {

UnpackPlan plan_of(const Unpack& i, Scalar operand) {
  if (i.in_place) return in_place(i.bits, operand).plan;
  return unpack_plan(i.bits, i.ones ? mantissa_bits(operand) : linear_window(operand));
}

namespace {

// Of the unit in which the last bit of a mantissa is 1.
double first_of_ones(Scalar operand) { return std::ldexp(1.0, mantissa_bits(operand)); }

}  // namespace

std::uint32_t joined_of(const Unpack& i, Scalar operand) {
  if (i.in_place) return in_place(i.bits, operand).joined * 0x10001u;
  return i.ones ? to_bits(operand, first_of_ones(operand)) * 0x10001u : 0;
}

double factor_of(const Unpack& i, Scalar operand, int offset) {
  const int unit = i.ones ? 0 : linear_exponent(operand);
  return std::ldexp(1.0, i.exponent + i.shift - unit - offset);
}

double ones_of(const Unpack& i, Scalar operand, int offset) {
  return i.ones ? first_of_ones(operand) * factor_of(i, operand, offset) : 0;
}

const BytePlan& plan_of(const UnpackBytes& i, Scalar to) {
  switch (to) {
    case Scalar::e4m3: return float_byte_plan(i.bits, i.mantissa_bits);
    case Scalar::s8: return i.has_zero() ? offset_byte_plan(i.bits) : signed_byte_plan(i.bits);
    default: return byte_plan(i.bits);
  }
}

}  // namespace ladder
