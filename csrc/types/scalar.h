// SPDX-License-Identifier: Apache-2.0
//
// The number formats in which machines compute, and in which kernels find scales and zero points,
// as opposed to the formats in which weights are stored. Each has a row, which says what programs
// call it and which element it is: what its bits mean, the row of the element says (table.cpp).
// Nothing else goes from one to the other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "types/element.h"
#include "types/scalar_enum.h"

namespace ladder {

struct ScalarRow {
  Scalar scalar;
  std::string_view name;  ///< in programs and expressions
  int bits;
  std::string_view element;  ///< empty: no storage format
};
inline constexpr std::array<ScalarRow, 10> kScalars{{
    {Scalar::u32, "u32", 32, ""},
    {Scalar::f16, "f16", 16, "float16"},
    {Scalar::bf16, "bf16", 16, "bfloat16"},
    {Scalar::f32, "f32", 32, "float32"},
    {Scalar::u8, "u8", 8, "uint8"},
    {Scalar::s8, "s8", 8, "int8"},
    {Scalar::s32, "s32", 32, ""},
    {Scalar::e8m0, "e8m0", 8, "e8m0"},
    {Scalar::e4m3, "e4m3", 8, "float8_e4m3"},
    {Scalar::e4m3fnuz, "e4m3fnuz", 8, "float8_e4m3fnuz"},
}};

constexpr const ScalarRow& row_of(Scalar scalar) {
  return kScalars[static_cast<std::size_t>(scalar)];
}
/// Sign, four bits of exponent and three of mantissa, whatever the bias and the specials.
constexpr bool has_fields_of_e4m3(Scalar scalar) {
  return scalar == Scalar::e4m3 || scalar == Scalar::e4m3fnuz;
}
constexpr int bits_of(Scalar scalar) { return row_of(scalar).bits; }
constexpr int bytes_of(Scalar scalar) { return bits_of(scalar) / 8; }
constexpr std::string_view name_of(Scalar scalar) { return row_of(scalar).name; }

/// Throws InternalError for u32 and s32, which are no storage formats.
const Element& element_of(Scalar scalar);
/// By the name of an element; nothing for elements that no program computes with.
std::optional<Scalar> scalar_of(std::string_view element);
inline std::optional<Scalar> scalar_of(const Element& element) { return scalar_of(element.name); }
/// By its name in programs; nothing where there is none.
std::optional<Scalar> scalar_called(std::string_view name);

/// Bits below which an in-place code c is the number c * 2^(its lowest bit's weight): the two
/// lowest binades. 11 for f16, 8 for bf16.
int linear_window(Scalar scalar);
/// The exponent of that weight: an f16 code of 1 is 2^-24, a bf16 code of 1 is 2^-133.
int linear_exponent(Scalar scalar);

/// Exponent and mantissa bits of floating formats.
int exponent_bits(Scalar scalar);
int mantissa_bits(Scalar scalar);

/// The number that `bits` stand for; exact. Integers are their values.
double to_number(Scalar scalar, std::uint32_t bits);
/// Nearest representable bits, ties to even; overflow gives infinity, NaN where there is none.
/// Integers truncate.
std::uint32_t to_bits(Scalar scalar, double number);
/// The code of s8 or e4m3 that is nearest, ties to even: -128, 127, -448 or 448 beyond these. NaN
/// stays NaN in e4m3 and is 0 in s8.
std::uint32_t nearest_code(Scalar scalar, float number);

}  // namespace ladder
