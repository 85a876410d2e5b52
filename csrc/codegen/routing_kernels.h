// SPDX-License-Identifier: Apache-2.0
//
// What a layer of experts needs around its two products: rows of activations in the order of their
// experts, the product of gate and up, and the sum of what a token's experts say. As a table of
// functions that write their sources in the language of a target.
#pragma once

#include <cstdint>
#include <string>

#include "expr/gating.h"
#include "types/scalar.h"

namespace ladder {

/// Threads of a block of every kernel here; experts of a layer, at most.
constexpr unsigned kRoutingThreads = 256;
constexpr std::int64_t kMostExperts = 1024;
/// Choices that a block of route() brings to their places, at most.
constexpr std::int64_t kMostChoicesOfBlock = 1024;

/// Rows are of pieces: of 16 bytes, or where they are not `whole` of one number. `dependent`: of a
/// dependent launch, which waits before all else. `scaled`: of route(), a row has a scale of f32
/// beside it, as rounded activations have. `alternating`: of gated(), eight columns of the gate and
/// eight of up in turn (kGateRows), which are whole pieces.
struct RowKind {
  bool whole, dependent, scaled = false, alternating = false;
};

struct RoutingKernels {
  /// route(const u32* experts, const void* x, void* rows, u32* items, u32* places, u32 choices, u32
  /// of_token, u32 wide, u32 count, u32 tile, u32 pieces, u32 slots): choice c of a token is the
  /// expert `experts[c]` (`wide`: of words of 64 bits); those that are not below `count` are
  /// nobody's. Row c / of_token of x goes to row places[c] of `rows`, rows of one expert side by
  /// side in the order of the choices, experts in theirs; places[c] is 2^32 - 1 where there is no
  /// expert. The `slots` items of
  /// Items::table have up to `tile` rows each, those that are left over none. Of rows that are
  /// `scaled` there are parameters const float* scales, float* row_scales behind `rows`: scales go
  /// where their rows go. Blocks take
  /// ceil(choices / blocks) choices each, at most kMostChoicesOfBlock.
  std::string (*route)(RowKind rows);
  /// gated(const void* x, void* y, u32 rows, u32 pieces, float limit, float alpha): y [rows,
  /// pieces] of x [rows, 2 pieces], gate in front of up, or in turn, in f32 and rounded once.
  /// Blocks are [columns, rows], and go on to the rows behind those.
  std::string (*gated)(Scalar scalar, Gated what, RowKind rows);
  /// combine(const void* rows, const u32* places, const void* weights, void* y, u32 tokens, u32
  /// of_token, u32 pieces): y[t] = sum of weights[t, j] * rows[places[t, j]], in f32 in the order
  /// of j, rounded once; weights of `weight`, f32 or as the rows. Blocks are [columns, tokens], and
  /// go on to the tokens behind those.
  std::string (*combine)(Scalar scalar, Scalar weight, RowKind rows);
};

}  // namespace ladder
