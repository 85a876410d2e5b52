// SPDX-License-Identifier: Apache-2.0
//
// How b-bit codes sit inside 32-bit words so that unpacking them costs the least.
//
// A *unit* is what one lane holds of a 16 x 64 piece of a weight: 16 pairs of codes in b words. The
// two codes of a pair sit at the same bits of the low and of the high 16-bit half of words, so one
// mask yields both, each in its own half, ready for a packed 16-bit multiply-add. A half holds
// floor(16 / b) whole fields; the bits left over at its top, of several words together, make up
// the remaining pairs.
//
// One planner gives both directions: `bit_plan(b)` says where every bit lies, which packs, and
// `unpack_plan(b, window)` the shifts and masks that read it, which every kernel emits. A code in
// place at bit o is a multiple of 2^o; it is usable where o + b bits fit the window within which
// the operand's format is linear in its code: 11 bits for float16, 8 for bfloat16 (their lowest
// two binades). So one packed image serves both formats.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ladder {

constexpr int kPairsPerUnit = 16;
constexpr int kFloat16Window = 11;
constexpr int kBfloat16Window = 8;

/// A bit of a code: which word of the unit, which bit of each 16-bit half.
struct BitPlace {
  int word, bit;
  bool operator==(const BitPlace&) const = default;
};

/// Where the bits of each pair lie, least significant first. Every bit of the b words is used once.
struct BitPlan {
  int bits;
  std::array<std::vector<BitPlace>, kPairsPerUnit> pairs;
};

/// The plan for codes of `bits` bits. The pairs 4s + r and 4s + (r ^ 2) lie at one offset under the
/// float16 window, so that they may feed one accumulator without being aligned.
/// Throws Unsupported outside 1 to 8.
const BitPlan& bit_plan(int bits);

/// (words[word] >> shift) & mask, or << -shift when negative; the mask is the same in both halves.
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
  int bits, window;
  std::array<UnpackPair, kPairsPerUnit> pairs;
  int shift_count() const;  ///< distinct (word, shift != 0): shifts to execute per unit
  int mask_count() const;   ///< pieces: AND or AND-OR operations per unit
};

/// How to read `bit_plan(bits)` within `window` bits of each half.
/// Throws Unsupported when the code is wider than the window.
UnpackPlan unpack_plan(int bits, int window);

/// The codes of pair `pair` in the unit `words`: low half, high half. Executes the plan.
std::array<std::uint32_t, 2> unpack_pair(const UnpackPlan& plan, const std::uint32_t* words,
                                         int pair);

/// One line per pair: "pair 3: (w1 >> 9) & 0x00070007 at 0".
std::string to_string(const UnpackPlan& plan);

}  // namespace ladder
