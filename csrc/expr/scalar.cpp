// SPDX-License-Identifier: Apache-2.0
#include "expr/scalar.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "types/element.h"

namespace ladder {
namespace {

struct Format {
  int exponent_bits, mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

Format format_of(Scalar scalar) {
  switch (scalar) {
    case Scalar::f16: return {5, 10};
    case Scalar::bf16: return {8, 7};
    case Scalar::f32: return {8, 23};
    case Scalar::u32:
    case Scalar::u8:
    case Scalar::s8:
    case Scalar::s32:
    case Scalar::e8m0:
    case Scalar::e4m3: break;
  }
  fail<InternalError>(name_of(scalar), " is not a format of arithmetic");
}

/// The stored format of that name; null for formats of arithmetic.
const Element* stored(Scalar scalar) {
  static const Element* const e8m0 = &element("e8m0");
  static const Element* const e4m3 = &element("float8_e4m3");
  return scalar == Scalar::e8m0 ? e8m0 : scalar == Scalar::e4m3 ? e4m3 : nullptr;
}

}  // namespace

std::string_view name_of(Scalar scalar) {
  switch (scalar) {
    case Scalar::u32: return "u32";
    case Scalar::f16: return "f16";
    case Scalar::bf16: return "bf16";
    case Scalar::f32: return "f32";
    case Scalar::u8: return "u8";
    case Scalar::s8: return "s8";
    case Scalar::s32: return "s32";
    case Scalar::e8m0: return "e8m0";
    case Scalar::e4m3: return "e4m3";
  }
  return "?";
}

int linear_window(Scalar scalar) { return format_of(scalar).mantissa_bits + 1; }

int linear_exponent(Scalar scalar) {
  const Format format = format_of(scalar);
  return 1 - format.bias() - format.mantissa_bits;
}

int exponent_bits(Scalar scalar) { return format_of(scalar).exponent_bits; }
int mantissa_bits(Scalar scalar) { return format_of(scalar).mantissa_bits; }

double to_number(Scalar scalar, std::uint32_t bits) {
  if (scalar == Scalar::u32 || scalar == Scalar::u8) return bits;
  if (scalar == Scalar::s8) return static_cast<std::int8_t>(bits);
  if (scalar == Scalar::s32) return static_cast<std::int32_t>(bits);
  if (const Element* row = stored(scalar)) return decode(*row, bits);
  if (scalar == Scalar::f32) return std::bit_cast<float>(bits);
  const Format format = format_of(scalar);
  const std::uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const int exponent =
      static_cast<int>(bits >> format.mantissa_bits & ((1u << format.exponent_bits) - 1));
  const double sign = bits >> 15 & 1 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, linear_exponent(scalar));
  return sign * std::ldexp(mantissa | 1u << format.mantissa_bits,
                           exponent - format.bias() - format.mantissa_bits);
}

std::uint32_t to_bits(Scalar scalar, double number) {
  if (scalar == Scalar::u32 || scalar == Scalar::u8) return static_cast<std::uint32_t>(number);
  if (scalar == Scalar::s32) return static_cast<std::uint32_t>(static_cast<std::int32_t>(number));
  if (scalar == Scalar::s8) return static_cast<std::uint8_t>(static_cast<std::int8_t>(number));
  if (const Element* row = stored(scalar)) return encode(*row, number, Overflow::special);
  if (scalar == Scalar::f32) return std::bit_cast<std::uint32_t>(static_cast<float>(number));
  const Format format = format_of(scalar);
  const std::uint32_t sign = std::signbit(number) ? 0x8000u : 0u;
  const std::uint32_t infinity = ((1u << format.exponent_bits) - 1) << format.mantissa_bits;
  if (std::isnan(number)) return sign | infinity | 1u << (format.mantissa_bits - 1);
  if (number == 0) return sign;
  int exponent;
  std::frexp(number, &exponent);
  // One unit in the last place: of the binade, or of the subnormals below the lowest one.
  const int unit = std::max(exponent - 1 - format.mantissa_bits, linear_exponent(scalar));
  const double units = std::nearbyint(std::ldexp(std::fabs(number), -unit));
  if (std::isinf(units)) return sign | infinity;
  // The code is linear in `units` within a binade and carries into the next by itself.
  const auto binade = static_cast<std::uint32_t>(unit - linear_exponent(scalar));
  const auto code =
      static_cast<std::uint64_t>(units) + (std::uint64_t{binade} << format.mantissa_bits);
  return sign | static_cast<std::uint32_t>(std::min<std::uint64_t>(code, infinity));
}

}  // namespace ladder
