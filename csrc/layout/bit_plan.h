// SPDX-License-Identifier: Apache-2.0
//
// How b-bit codes sit inside 32-bit words so that unpacking them costs the least.
//
// A *unit* is what one lane holds of a 16 x 64 piece of a weight: 32 codes in b words. Operands of
// 16 bits take them in 16 *pairs*, one per 32-bit register of the instruction; operands of 8 bits
// in 8 quads, which this file calls pairs too where both are meant. The codes of a pair sit at the
// same bits of each 16-bit half of words (of a quad: of each byte), so one mask yields all of them,
// each in its own half, ready for packed arithmetic or the instruction itself. A half holds
// floor(16 / b) whole fields (a byte floor(8 / b)); the bits left over at its top, of several words
// together, make up the remaining pairs.
//
// One planner gives both directions: `bit_plan(b, operand_bits)` says where every bit lies, which
// packs, and `unpack_plan` the shifts and masks that read it, which every kernel emits. A code in
// place at bit o is a multiple of 2^o; it is usable where o + b bits fit the window within which
// the operand's format is linear in its code: 11 bits for float16, 8 for bfloat16 (their lowest
// two binades), 8 for u8, 4 for e4m3 (code k is k 2^-9 up to 16). So one packed image serves all
// formats of a width. A signed code wants its sign where the operand has it: read `top`, every code
// ends at the top of its window, times 2^(8 - b) in s8.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ladder {

constexpr int kPairsPerUnit = 16;
constexpr int kFloat16Window = 11;
constexpr int kBfloat16Window = 8;
constexpr int kByteWindow = 8;  ///< u8 and s8
constexpr int kE4m3Window = 4;

/// A bit of a code: which word of the unit, which bit of each half (or byte).
struct BitPlace {
  int word, bit;
  bool operator==(const BitPlace&) const = default;
};

/// Where the bits of each pair lie, least significant first. Every bit of the b words is used once.
struct BitPlan {
  int bits, operand_bits;
  std::vector<std::vector<BitPlace>> pairs;  ///< operand_bits of them
  std::vector<int> offsets;                  ///< of each under the window it is placed for
};

/// The plan for codes of `bits` bits that become operands of `operand_bits`, 16 or 8. The pairs
/// 4s + r and 4s + (r ^ 2), which meet in one sum of the instruction, lie at one offset, so that
/// they need not be aligned. Throws Unsupported for codes outside 1 to 8 bits and other operands.
const BitPlan& bit_plan(int bits, int operand_bits = 16);

/// (words[word] >> shift) & mask, or << -shift when negative; the mask is the same in every half.
struct UnpackPiece {
  int word, shift;
  std::uint32_t mask;
  bool operator==(const UnpackPiece&) const = default;
};

/// The OR of the pieces is the pair: each half holds its code times 2^offset.
struct UnpackPair {
  std::vector<UnpackPiece> pieces;
  int offset;
};

struct UnpackPlan {
  int bits, window, operand_bits;
  std::vector<UnpackPair> pairs;
  int shift_count() const;  ///< distinct (word, shift != 0): shifts to execute per unit
  int right_shift_count() const;
  int mask_count() const;  ///< pieces: AND or AND-OR operations per unit
};

enum class Align {
  in_place,  ///< wherever a code fits the window, with the fewest shifts
  top,       ///< at the top of the window
  rows,      ///< 16 bits: all codes of one parity of eight rows at one offset, at the fewest steps
};

/// How to read `plan` within the lowest `window` bits of each half, with Align::rows at bits from
/// `lowest` on.
/// Throws Unsupported when the code is wider than the window, InvalidArgument when the window is
/// wider than the operand, or when rows are asked for of bytes.
UnpackPlan unpack_plan(const BitPlan& plan, int window, Align align = Align::in_place,
                       int lowest = 0);
/// The same for `bit_plan(bits)`, found once: schedules are judged by it by the thousand.
const UnpackPlan& unpack_plan(int bits, int window);

/// The pieces whose OR has bit `from + i` of both codes of `pair` at bit `place + i` of their
/// halves, for `count` bits: fields of floating formats on their way to those of an operand.
std::vector<UnpackPiece> move_bits(const BitPlan& plan, int pair, int from, int count, int place);

/// What the pieces read of the unit `words`.
std::uint32_t read_pieces(const std::vector<UnpackPiece>& pieces, const std::uint32_t* words);

/// The codes of pair `pair` in the unit `words`: low half, high half. Executes the plan.
std::array<std::uint32_t, 2> unpack_pair(const UnpackPlan& plan, const std::uint32_t* words,
                                         int pair);
/// The same for 8-bit operands, lowest byte first.
std::array<std::uint32_t, 4> unpack_quad(const UnpackPlan& plan, const std::uint32_t* words,
                                         int quad);

/// One line per pair: "pair 3: (w1 >> 9) & 0x00070007 at 0".
std::string to_string(const UnpackPlan& plan);

}  // namespace ladder
