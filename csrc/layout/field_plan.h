// SPDX-License-Identifier: Apache-2.0
//
// Fields of floats on their way from codes to operands of 16 bits.
//
// A code's magnitude moves to bit `place` of its half and its sign to bit 15, two distances: pair
// by pair that takes two shifts and two masks. But all codes of a word move by the same two
// distances but for one shift to the left. So one word is made of two shifted copies, with signs of
// one between magnitudes of the other, wherever these do not meet, and each pair is a shift to the
// left and one mask of it:
//
//     moved = the word >> magnitude, but where `signs` are set the word >> sign
//     pair  = moved << left & mask
//
// Shifts to the left run beside the masks, on the pipe of multiply-adds.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/bit_plan.h"

namespace ladder {

/// What several pairs are made of: two copies of `word`, shifted to the right, or left by -shift.
struct MovedFields {
  int word, magnitude, sign;
  std::uint32_t signs;  ///< the same in both halves
};

struct FieldPair {
  int moved;  ///< of FieldPlan::moved; -1: the pair is the OR of its own pieces
  int left;
  std::vector<UnpackPiece> magnitude, sign;  ///< where the pair has no share
};

struct FieldPlan {
  int bits, place;
  std::uint32_t mask;  ///< of the fields of an operand
  std::vector<MovedFields> moved;
  std::vector<FieldPair> pairs;
  int mask_count() const;  ///< AND, AND-OR and selections per unit
  int right_shift_count() const;
  int left_shift_count() const;
};

/// For codes of `bits` bits, 2 to 8, of which the highest is the sign: the plan with the fewest
/// operations, of which a shift to the left counts half. Throws InvalidArgument where the magnitude
/// at `place` has no room below bit 15.
const FieldPlan& field_plan(int bits, int place);

/// Bits of `signs` where `mask` is set, of `magnitudes` elsewhere.
constexpr std::uint32_t select_bits(std::uint32_t magnitudes, std::uint32_t signs,
                                    std::uint32_t mask) {
  return (magnitudes & ~mask) | (signs & mask);
}

/// Pair `pair` of the unit `words`.
std::uint32_t read_fields(const FieldPlan& plan, const std::uint32_t* words, int pair);

}  // namespace ladder
