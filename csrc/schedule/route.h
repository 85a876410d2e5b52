// SPDX-License-Identifier: Apache-2.0
//
// What pipelines decide alike.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "expr/problem.h"
#include "layout/digits.h"

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
  /// Of activations that come as bytes: integers as digits have them, zero points of half the range
  /// by the sign; as e4m3 floats, and integers less their zero point
  bytes,
};

/// Operands are bytes, and sums of integers s32.
constexpr bool has_bytes(Route route) { return route == Route::digits || route == Route::bytes; }

/// A zero point of `problem` takes one more product in each step, of a constant by the activations.
bool takes_zero_product(const Problem& problem, Route route);
/// Bytes are codes less a zero point that their sign does not take off: two operations for four,
/// in e4m3 three.
bool subtracts_zero(const Problem& problem, Route route);

/// How codes of integers become bytes of A (layout/digits.h).
struct CodeBytes {
  bool has_sign;    ///< they are s8, else u8
  bool below_sign;  ///< of s8: the sign is 0 until a zero point is subtracted
  const BytePlan& plan;
  /// By parity of eight rows: a number of which one more product with the activations gives what
  /// sums of bytes lack. 0: they lack nothing, or it is for stored zero points.
  std::array<double, 2> zero;
};
/// `takes_unsigned`: of the instruction.
CodeBytes code_bytes(const Problem& problem, Route route, bool takes_unsigned);

/// CTAs of a kernel: along the rows of the weight, along the tokens, and along K.
struct CtaGrid {
  std::int64_t tiles, token_tiles, splits;
  std::int64_t together = token_tiles;  ///< tiles of tokens: raster.h
  std::int64_t items = 1;               ///< of experts, that go together: raster.h
  std::int64_t count() const { return tiles * token_tiles * splits; }
};

// By the numbers of the enumerators.
constexpr std::array<std::string_view, 3> kReductions = {"none", "cluster", "ordered"};
constexpr std::array<std::string_view, 4> kRoutes = {"multiply_add", "digits", "in_place", "bytes"};

}  // namespace ladder
