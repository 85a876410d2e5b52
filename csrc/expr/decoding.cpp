// SPDX-License-Identifier: Apache-2.0
#include "expr/decoding.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"

namespace ladder {
namespace {

/// Formats whose exponents are all exponents of finite numbers of the operand, or whose top one
/// means the same in both.
std::optional<Decoding> fields_of(const Element& e, Scalar operand) {
  if (e.encoding != Encoding::floating || e.specials == Specials::fnuz) return std::nullopt;
  if (e.mantissa_bits > mantissa_bits(operand)) return std::nullopt;
  const int spare = exponent_bits(operand) - e.exponent_bits;
  const bool fills = spare == 0 && e.specials != Specials::ieee;
  const bool halved = fills && e.specials == Specials::none && operand == Scalar::f16;
  if (spare < 0 || (fills && !halved)) return std::nullopt;
  Decoding out{Decoding::Kind::fields, 0, {}, {}};
  FloatFields& fields = out.fields;
  fields = {e.bits, mantissa_bits(operand) - e.mantissa_bits, 0, 1, halved};
  if (e.specials == Specials::nan_only) fields.special = 1u << fields.place;
  if (e.specials == Specials::ieee && spare > 0) fields.special = 1u << mantissa_bits(operand);
  out.exponent = e.bias - ((1 << (exponent_bits(operand) - 1)) - 1) - (halved ? 1 : 0);
  if (operand == Scalar::bf16) {
    // Left where they are, products with them would be too small for f32.
    const int up = std::min(-out.exponent, 127);
    fields.factor = std::ldexp(1.0, up);
    out.exponent += up;
  }
  return out;
}

/// Significant bits of e4m3, the exponents of its smallest and largest powers of two, and what a
/// group has to be so that scaling its sums takes more than scaling its operands does: one step of
/// the matrix instruction.
constexpr int kScaleBits = 4, kLeastScale = -9, kLargestScale = 8, kScaledGroup = 16;

/// With the scales of `expr` in the operands, where these hold the products.
Decoding scaled(Decoding d, const Linear& expr) {
  if (expr.scale != Scalar::e4m3 || expr.group_size() != kScaledGroup) return d;
  if (expr.stored_zero != Zero::none || d.fields.special != 0 || d.fields.halved) return d;
  const Element& e = *expr.element;
  const Scalar operand = expr.activation;
  const int largest_exponent = (1 << (exponent_bits(operand) - 1)) - 1;
  // Factor and scale are one operand, too.
  const int factor = std::min(std::ilogb(d.fields.factor), largest_exponent - kLargestScale);
  const int exponent = d.exponent + factor - std::ilogb(d.fields.factor);
  const bool digits = e.mantissa_bits + 1 + kScaleBits <= mantissa_bits(operand) + 1;
  const bool least =
      1 - e.bias - e.mantissa_bits + exponent + kLeastScale >= linear_exponent(operand);
  const bool largest =
      std::ilogb(max_value(e)) + 1 + exponent + kLargestScale + 1 <= largest_exponent + 1;
  if (!digits || !least || !largest) return d;
  d.fields.factor = std::ldexp(1.0, factor);
  d.exponent = exponent;
  d.scaled = true;
  return d;
}

Decoding table_of(const Element& e, Scalar operand) {
  Decoding out{Decoding::Kind::table, 0, {}, {}};
  double largest = 0;
  for (int code = 0; code < e.code_count(); ++code) {
    const double value = std::fabs(decode(e, code));
    if (std::isfinite(value)) largest = std::max(largest, value);
  }
  const int top = operand == Scalar::f16 ? 14 : 0;
  out.exponent = largest == 0 ? 0 : top - std::ilogb(largest);
  for (int code = 0; code < e.code_count(); ++code) {
    const double value = std::ldexp(decode(e, code), out.exponent);
    const auto bits = to_bits(operand, value);
    if (e.encoding == Encoding::floating && !std::isnan(value) &&
        to_number(operand, bits) != value) {
      fail<Unsupported>("the values of ", e.name, " do not fit ", name_of(operand),
                        ": beside its largest, ", largest, ", code ", code, ", ", decode(e, code),
                        ", is lost");
    }
    out.table.push_back(static_cast<std::uint16_t>(bits));
  }
  return out;
}

}  // namespace

Decoding::Kind decoding_kind(const Linear& expr) {
  if (expr.element == nullptr) return Decoding::Kind::integers;
  return fields_of(*expr.element, expr.activation) ? Decoding::Kind::fields : Decoding::Kind::table;
}

Decoding decoding_of(const Linear& expr) {
  if (expr.element == nullptr) return {Decoding::Kind::integers, 0, {}, {}};
  if (auto fields = fields_of(*expr.element, expr.activation)) return scaled(*fields, expr);
  return table_of(*expr.element, expr.activation);
}

double decoding_error(const Linear& expr) {
  const bool rounded = expr.element != nullptr && expr.element->encoding == Encoding::table;
  return rounded ? std::ldexp(1.0, -mantissa_bits(expr.activation) - 1) : 0;
}

}  // namespace ladder
