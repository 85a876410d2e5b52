// SPDX-License-Identifier: Apache-2.0
//
// What pipelines decide alike.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ladder {

/// How the parts of K are added up across thread blocks. All three are deterministic.
enum class Reduction {
  none,     ///< one block has all of K
  cluster,  ///< the blocks of a cluster, through each other's shared memory
  ordered,  ///< through global memory; the block that finishes last adds in order
};

/// How codes become operands of the matrix instruction. All are exact.
enum class Route {
  multiply_add,  ///< (code - zero) * 2^e: a mask and a packed multiply-add per two codes
  /// code * 2^offset in a byte: a mask per four codes, one token as digits of 8 bits, sums of s32
  digits,
  in_place,  ///< code * 2^(offset + e): a mask; the zero point through one more product per step
};

/// CTAs of a kernel: along the rows of the weight, along the tokens, and along K.
struct CtaGrid {
  std::int64_t tiles, token_tiles, splits;
  std::int64_t count() const { return tiles * token_tiles * splits; }
};

// By the numbers of the enumerators.
constexpr std::array<std::string_view, 3> kReductions = {"none", "cluster", "ordered"};
constexpr std::array<std::string_view, 3> kRoutes = {"multiply_add", "digits", "in_place"};

}  // namespace ladder
