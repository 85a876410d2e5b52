// SPDX-License-Identifier: Apache-2.0
//
// Activations as digits, and codes as bytes: products of integers, exact whatever the order.
//
// Every finite float16 is a whole number times 2^-24, of at most 41 bits with its sign: six digits
// of 8 bits, each in -128 .. 127. A bfloat16 within 2^54 of the largest beside it is one of at most
// 63 bits: eight digits. One token's digits take rows that a matrix instruction has for eight
// tokens, so one product of bytes gives what a product of halves gives, for twice as many columns.
//
// The weight image of 16-bit operands serves bytes: a register of the k32 instruction has both
// pairs of one k-step and row parity, one in the lower and one in the upper byte of each half.
// Where they lie 8 bits apart in one word (1, 2, 4 and 8 bits), one mask finds all four codes.
// Their columns are not neighbours: digits lie in the order in which registers have them. Bytes of
// u8 are linear in all 8 bits.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "layout/bit_plan.h"
#include "types/scalar.h"

namespace ladder {

constexpr int kMostDigits = 8;
constexpr int kDigitBits = 8;
constexpr int kByteStep = 32;  ///< columns of one k-step of bytes
constexpr int kByteStepsPerBlock = 2;

/// Digits of f16 and bf16: 6 and 8.
constexpr int digit_count(Scalar scalar) { return scalar == Scalar::f16 ? 6 : kMostDigits; }
/// A number is its digits times 2^(8 p + digit_exponent) times its unit.
constexpr int digit_exponent(Scalar scalar) { return scalar == Scalar::f16 ? -24 : -61; }
/// The unit that numbers share, of which `largest` is the largest: a power of two. 1 for f16.
double digit_unit(Scalar scalar, double largest);
/// The digits, lowest first, of the finite number of those bits, with zeros after the last: exact
/// for f16; of bf16, what is below 2^-61 units is cut off.
std::array<int, kMostDigits> digits_of(Scalar scalar, std::uint32_t bits, double unit);

/// Where column `column` of a block lies among the digits of its row: neighbours are the four
/// columns of a register.
constexpr int digit_place(int column) {
  const int half = column / 8 % 2, lane = column / 2 % 4;
  return column / 16 * 16 + 4 * lane + 2 * (column % 2) + half;
}

/// How the words of a unit become A operands of bytes: register r of k-step s is the OR of pieces
/// of them, each byte its code times 2^offset by parity of eight rows.
struct BytePlan {
  std::array<std::array<std::vector<UnpackPiece>, 4>, kByteStepsPerBlock> registers;
  std::array<int, 2> offset;
  int mask_count, shift_count;  ///< pieces, and distinct shifts of a word, per unit
};
/// Throws Unsupported for codes outside 1 to 8 bits.
const BytePlan& byte_plan(int bits);
/// The same with codes in the highest bits. XORed with kSignBits they are signed bytes,
/// (code - 2^(bits - 1)) * 2^(8 - bits): a zero point in the middle takes no product of its own.
const BytePlan& signed_byte_plan(int bits);
constexpr std::uint32_t kSignBits = 0x80808080u;
/// The same with codes one bit below the highest, for up to 7 bits. What is left of them when a
/// zero point of at most 2^bits, times 2^(7 - bits), is subtracted is a signed byte.
const BytePlan& offset_byte_plan(int bits);
/// Of four bytes, each less its byte of `zeros`: no byte borrows from the next.
constexpr std::uint32_t less_zeros(std::uint32_t codes, std::uint32_t zeros) {
  return ((codes | kSignBits) - zeros) ^ kSignBits;
}
constexpr int kMostOffsetBits = 7;
/// Four bytes of whole_byte_plan(), each (code - zero) * scale as s8, which holds it: 128 more is a
/// byte, so that one product and one sum of whole words carry from no byte to the next.
constexpr std::uint32_t scaled_bytes(std::uint32_t codes, std::uint32_t scale, std::uint32_t zero) {
  return (codes * scale + (kSignBits - zero * 0x01010101u * scale)) ^ kSignBits;
}
/// Floats of sign, exponent and mantissa as e4m3, whose exponent is off by the difference of the
/// biases. Throws InternalError where they have no room.
const BytePlan& float_byte_plan(int bits, int mantissa_bits);
constexpr int kByteExponent = 4, kByteMantissa = 3, kByteBias = 7;  ///< of e4m3
/// Four bytes of e4m3 as e4m3fnuz of half the number: times 2^kFnuzExponent they are what they
/// were, -0 as 0. The bias of e4m3fnuz is one more, so that all codes but three stay: that of -0 is
/// NaN there, and those of NaN are numbers.
constexpr std::uint32_t fnuz_bytes(std::uint32_t bytes) {
  const auto magnitudes = bytes & ~kSignBits;
  const auto with_sign = (magnitudes + ~kSignBits) | ~kSignBits;  // but of zero
  const auto nan = (magnitudes + 0x01010101u) & kSignBits;
  return (bytes & with_sign & ~(nan - (nan >> 7))) | nan;
}
constexpr int kFnuzExponent = 1;
/// Codes in the lowest bits, times 2^shift, of at most 5 bits together: whole numbers up to 16 are
/// e4m3 as they are, times 2^-9.
const BytePlan& whole_byte_plan(int bits, int shift);
constexpr int kMostWhole = 16, kWholeExponent = -9, kMostWholeBits = 5;
/// Of four bytes of whole_byte_plan(), each less its byte of `zeros`, at most 16, in e4m3: the
/// distance of the two, which is at most 16, and the sign. Zero is +0.
constexpr std::uint32_t whole_less_zeros(std::uint32_t codes, std::uint32_t zeros) {
  std::uint32_t distances = 0;
  for (int at = 0; at < 32; at += 8) {
    const auto code = codes >> at & 255U, zero = zeros >> at & 255U;
    distances |= (code > zero ? code - zero : zero - code) << at;
  }
  return distances | (~(codes + (kSignBits - zeros)) & kSignBits);
}

}  // namespace ladder
