// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic on whole register tiles, element by element and along a dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "layout/layout.h"
#include "program/affine.h"

namespace ladder {

enum class UnaryOp { negate, absolute, reciprocal, square_root, round_to_even };
enum class BinaryOp {
  add,
  subtract,
  multiply,
  divide,
  minimum,
  maximum,
  bit_and,
  bit_or,
  bit_xor,
  shift_left,   ///< by 32 or more: 0
  shift_right,  ///< the same
};
std::string_view name_of(UnaryOp op);
std::string_view name_of(BinaryOp op);

/// to[i] = op(from[i]), of f32 tiles of one layout; correctly rounded.
struct Unary {
  UnaryOp op;
  RegisterId to, from;
};
/// to[i] = op(a[i], b[i]), of f32 tiles correctly rounded, or of u32 tiles modulo 2^32. A dimension
/// of extent 1 of `a` or `b` repeats; the thread that holds an element of `to` holds what it takes.
struct Binary {
  BinaryOp op;
  RegisterId to, a, b;
};

enum class ReduceOp { add, minimum, maximum };
std::string_view name_of(ReduceOp op);

/// Folds `dim` of an f32 tile; every thread that had a part gets the result. The order is fixed:
/// the slots of a thread, then its lanes pairwise from the nearest, then the warps in order. Over
/// several warps it goes through `scratch`, f32, threads * slots of `to`, and is two Barriers.
struct Reduce {
  ReduceOp op;
  RegisterId to, from;
  int dim;
  BufferId scratch = -1;
};
/// The layout of the result: `dim` has extent 1, threads along it become replicas.
Layout reduced(const Layout& layout, int dim);

/// to[at + i] += from[i] in global f32 memory; nothing outside the view. Blocks add in any order,
/// so the rounding of sums differs from run to run: the one instruction that is not deterministic.
struct AtomicAdd {
  RegisterId from;
  ViewId to;
  std::vector<Affine> at;
};

/// For each slot of `to`, the slot in which the same thread holds that element of `from`, whose
/// dimensions of extent 1 repeat; nothing when the slots differ by thread or it lies elsewhere.
std::optional<std::vector<std::int64_t>> slots_of(const Layout& to, const Layout& from);

}  // namespace ladder
