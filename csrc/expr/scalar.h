// SPDX-License-Identifier: Apache-2.0
//
// The formats in which machines compute, and those in which they find the scales and zero points of
// weights, as opposed to the formats in which weights are stored.
#pragma once

#include <cstdint>
#include <string_view>

namespace ladder {

enum class Scalar {
  u32,   ///< raw bits: packed codes
  f16,   ///< IEEE 754 binary16
  bf16,  ///< the upper half of binary32
  f32,   ///< IEEE 754 binary32
  u8,    ///< stored integer zero points; codes as operands
  s8,    ///< digits of activations (layout/digits.h)
  s32,   ///< sums of products of the last two
  e8m0,  ///< scales: types' element of that name, a power of two
  e4m3,  ///< scales: types' element float8_e4m3
};

constexpr int bits_of(Scalar scalar) {
  switch (scalar) {
    case Scalar::u32:
    case Scalar::s32:
    case Scalar::f32: return 32;
    case Scalar::f16:
    case Scalar::bf16: return 16;
    case Scalar::u8:
    case Scalar::s8:
    case Scalar::e8m0:
    case Scalar::e4m3: return 8;
  }
  return 0;
}
constexpr int bytes_of(Scalar scalar) { return bits_of(scalar) / 8; }

/// "u32", "f16", "bf16", "f32", "u8", "s8", "s32", "e8m0", "e4m3".
std::string_view name_of(Scalar scalar);

/// Bits below which an in-place code c is the number c * 2^(its lowest bit's weight): the two
/// lowest binades. 11 for f16, 8 for bf16.
int linear_window(Scalar scalar);
/// The exponent of that weight: an f16 code of 1 is 2^-24, a bf16 code of 1 is 2^-133.
int linear_exponent(Scalar scalar);

/// Exponent and mantissa bits of f16, bf16 and f32.
int exponent_bits(Scalar scalar);
int mantissa_bits(Scalar scalar);

/// The number that `bits` stand for; exact. Integers are their values.
double to_number(Scalar scalar, std::uint32_t bits);
/// Nearest representable bits, ties to even; overflow gives infinity, NaN where there is none.
/// Integers truncate.
std::uint32_t to_bits(Scalar scalar, double number);

}  // namespace ladder
