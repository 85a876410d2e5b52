// SPDX-License-Identifier: Apache-2.0
// Functions of preludes that are plain C++ in every language.
#pragma once

#include <string_view>

namespace ladder::codegen {

inline constexpr std::string_view kIntegerFunctions =
    R"(DEVICE u32 add_u32(u32 a, u32 b) { return a + b; }
DEVICE u32 subtract_u32(u32 a, u32 b) { return a - b; }
DEVICE u32 multiply_u32(u32 a, u32 b) { return a * b; }
DEVICE u32 minimum_u32(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 maximum_u32(u32 a, u32 b) { return a < b ? b : a; }
DEVICE u32 bit_and_u32(u32 a, u32 b) { return a & b; }
DEVICE u32 bit_or_u32(u32 a, u32 b) { return a | b; }
DEVICE u32 bit_xor_u32(u32 a, u32 b) { return a ^ b; }
DEVICE u32 shift_left_u32(u32 a, u32 b) { return b < 32 ? a << b : 0; }
DEVICE u32 shift_right_u32(u32 a, u32 b) { return b < 32 ? a >> b : 0; }
)";

inline constexpr std::string_view kMagnitudeFunctions =
    R"(// All ones in halves whose magnitude, read as an integer, is at least that of `least`.
DEVICE u32 at_least_by_sums(u32 both, u32 least) {
  const u32 carry = (both & 0x7fff7fffu) + (0x80008000u - least) & 0x80008000u;
  return (carry << 1) - (carry >> 15);
}
)";

inline constexpr std::string_view kScaleFunctions =
    R"(DEVICE float from_u8(u32 code) { return (float)code; }
// 2^(code - 127), of which code 0 is a subnormal; 255 is NaN.
DEVICE float from_e8m0(u32 code) {
  return as_float(code << 23 | (((code + 1) & 0xffu) < 2 ? 0x00400000u : 0u));
}
// Two codes, in bytes 1 and 3 of a word, as f16 of 2^-8 times their values; all ones is NaN.
DEVICE u32 halves_e4m3(u32 both) {
  const u32 magnitude = both >> 1 & 0x3f803f80u;
  return magnitude | (magnitude + 0x00800080u & 0x40004000u) | both & 0x80008000u;
}
)";

/// Beside products by powers of two whose exponents have 7 bits of the codes.
inline constexpr std::string_view kPowerFunctions =
    R"(// The root of what the top bit of a code of e8m0 stands for, 2^64 or 1, in bf16; 255 is NaN.
DEVICE u32 root_above(u32 code) { return code < 128 ? 0x3f80u : code == 255 ? 0x7fc0u : 0x5f80u; }
// Of the codes in both halves of a word.
DEVICE u32 roots_above(u32 codes) {
  return root_above(codes & 0xffu) | root_above(codes >> 16) << 16;
}
)";

/// Numbers to the nearest codes of 8 bits (nearest_code), two in the low half of a word.
inline constexpr std::string_view kBytesFunctions =
    R"(// Whole numbers below 2^22 appear in the lowest bits of their sum with 1.5 * 2^23.
DEVICE u32 code_s8(float x) {
  const float number = x == x ? x : 0.0f, above = number > -128.0f ? number : -128.0f;
  return as_bits((above < 127.0f ? above : 127.0f) + 12582912.0f) & 0xffu;
}
DEVICE u32 codes_s8(float low, float high) { return code_s8(low) | code_s8(high) << 8; }
)";
/// The same without an instruction for it.
inline constexpr std::string_view kFloatBytesFunctions =
    R"(// From 2^-6 on the nearest of the mantissas of three bits; below it whole multiples of 2^-9 appear
// in the lowest bits of their sum with 2^14. 448 is the largest, NaN stays NaN.
DEVICE u32 code_e4m3(float x) {
  const u32 exact = as_bits(x) & 0x7fffffffu, bits = exact < 0x43e00000u ? exact : 0x43e00000u;
  const u32 normal = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - 960u;
  const u32 small = as_bits(as_float(bits) + 16384.0f) - 0x46800000u;
  const u32 code = (bits < 0x3c800000u ? small : normal) | (as_bits(x) >> 24 & 0x80u);
  return exact > 0x7f800000u ? 0x7fu : code;
}
DEVICE u32 codes_e4m3(float low, float high) { return code_e4m3(low) | code_e4m3(high) << 8; }
)";

inline constexpr std::string_view kFnuzFunctions =
    R"(// Four numbers of e4m3 as e4m3fnuz of half each (layout/digits.h). The code of -0 is NaN there.
DEVICE u32 unsigned_zeros(u32 bytes) {
  return bytes & (((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | 0x7f7f7f7fu);
}
// Of those among which NaN may be.
DEVICE u32 fnuz_bytes(u32 bytes) {
  const u32 nan = ((bytes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
  return (unsigned_zeros(bytes) & ~(nan - (nan >> 7))) | nan;
}
)";

}  // namespace ladder::codegen
