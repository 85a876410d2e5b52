// SPDX-License-Identifier: Apache-2.0
//
// Where a kernel finds the entries of a code table for the codes of a pair.
//
// An entry has one copy per lane, so it is kLookupBytes long, and its address is that many times
// the code: a field of a word, shifted. Rather than shifting each code into place, one instruction
// multiplies the bytes of a word, or its halves, by small weights, adds the products, and adds
// where the lane's copy begins: a field at bit o of a byte or a half times 128 / 2^o. With two
// codes in one index, the second has 2^bits times the weight of the first. Weights are bytes
// themselves, so a field must lie where its weight is between 1 and 255; most do as they are
// packed.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/bit_plan.h"

namespace ladder {

/// Bytes from one entry to the next: 32 lanes, 4 bytes each.
constexpr int kLookupBytes = 128;

struct LookupPair {
  std::vector<UnpackPiece> pieces;  ///< their OR is what is multiplied
  bool by_bytes;                    ///< its four bytes; else its halves, by the lowest two weights
  /// Four bytes each: one sum is where the entry of both codes begins, or two, those of the low and
  /// of the high one.
  std::vector<std::uint32_t> weights;
};

/// For each pair of a unit. `joint`: one index for both codes, the low one in its low bits.
/// Throws Unsupported when joint indices have more than 8 bits.
std::vector<LookupPair> lookup_plan(const BitPlan& plan, bool joint);

/// The sum of products of the bytes or halves of `word`: what the instruction computes.
std::uint32_t sum_of_products(std::uint32_t word, std::uint32_t weights, bool by_bytes);

}  // namespace ladder
