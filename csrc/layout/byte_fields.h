// SPDX-License-Identifier: Apache-2.0
//
// Fields of floats of 4 bits, two codes to a byte, moved by bytes.
//
// Sign and magnitude go to different bits, so moving them pair by pair takes two shifts a pair, of
// which the pairs of a word share nothing. Where both land in the upper byte of a half, a byte is
// all of an operand: one move serves the lower codes of all four bytes of a word and one the upper
// ones, and a mask, or a shift and a mask in one permutation of bytes, makes the two pairs of each.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "layout/bit_plan.h"

namespace ladder {

/// By k-step, by code of a byte (lower, upper): magnitude and sign, in every byte.
using ByteFields = std::array<std::array<std::vector<UnpackPiece>, 2>, 4>;

/// True where the magnitude, its lowest bit at bit `place` of a half, lies in the upper byte below
/// the sign.
constexpr bool fields_are_bytes(int bits, int place) {
  return bits == 4 && place >= 8 && place + bits - 1 <= 15;
}
/// Throws InvalidArgument where it does not.
ByteFields byte_fields(int bits, int place);

/// Distinct shifts of a word, per unit.
int shift_count(const ByteFields& fields);

/// Pair `pair` of the unit `words`.
std::uint32_t read_byte_fields(const ByteFields& fields, const std::uint32_t* words, int pair);

}  // namespace ladder
