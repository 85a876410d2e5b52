// SPDX-License-Identifier: Apache-2.0
//
// The formats in which machines compute, as opposed to the formats in which weights are stored.
#pragma once

#include <cstdint>
#include <string_view>

namespace ladder {

enum class Scalar {
  u32,   ///< raw bits: packed codes
  f16,   ///< IEEE 754 binary16
  bf16,  ///< the upper half of binary32
  f32,   ///< IEEE 754 binary32
};

constexpr int bits_of(Scalar scalar) {
  return scalar == Scalar::f16 || scalar == Scalar::bf16 ? 16 : 32;
}
constexpr int bytes_of(Scalar scalar) { return bits_of(scalar) / 8; }

/// "u32", "f16", "bf16", "f32".
std::string_view name_of(Scalar scalar);

/// Bits below which an in-place code c is the number c * 2^(its lowest bit's weight): the two
/// lowest binades. 11 for f16, 8 for bf16.
int linear_window(Scalar scalar);
/// The exponent of that weight: an f16 code of 1 is 2^-24, a bf16 code of 1 is 2^-133.
int linear_exponent(Scalar scalar);

/// The number that `bits` stand for; exact. u32 is its integer value.
double to_number(Scalar scalar, std::uint32_t bits);
/// Nearest representable bits, ties to even; overflow gives infinity. u32 truncates.
std::uint32_t to_bits(Scalar scalar, double number);

}  // namespace ladder
