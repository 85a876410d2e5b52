// SPDX-License-Identifier: Apache-2.0
//
// What each iterator of a tensor expression does, and the matmul that the expression therefore is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/tensor_expr.h"

namespace ladder {

enum class IteratorKind {
  S,  ///< spatial, in a, b and out: matmuls side by side
  I,  ///< spatial, in a and out: rows
  J,  ///< spatial, in b and out: columns
  K,  ///< reduction, in a and b
  T,  ///< spatial, of extent 1: has no part in it. A reduction of extent 1 is K
};

/// "S", "I", "J", "K", "T".
std::string_view name_of(IteratorKind kind);

/// The kind of each iterator. Throws Unsupported, naming the iterator, for one of no kind.
std::vector<IteratorKind> classify(const TensorExpr& expr);

/// Several iterators as one, in mixed radix, outermost first: (n * H + h) * W + w.
struct Fused {
  std::vector<int> iterators;
  std::int64_t extent = 1;  ///< product of the iterators' extents
  bool operator==(const Fused&) const = default;
};

/// An expression as out[s, i, j] = sum(k) a[s, i, k] * b[s, j, k]. Iterators fuse in the order of
/// their declaration.
struct MatmulForm {
  TensorExpr expr;
  Fused s, i, j, k;
  bool operator==(const MatmulForm&) const = default;
};

/// Throws Unsupported when some iterator has no kind or when there is nothing to be rows, columns
/// or sums of a matmul: a depthwise convolution has no J.
MatmulForm matmul_form(const TensorExpr& expr);

/// Values of the expression's iterators at a point of the matmul: the inverse of the fusions.
std::vector<std::int64_t> iterators_at(const MatmulForm& form, std::int64_t s, std::int64_t i,
                                       std::int64_t j, std::int64_t k);

/// Place in the tensor of element [s, row, k] of the view of `a` or `b`; -1: a zero outside it.
std::int64_t place_in_a(const MatmulForm& form, std::int64_t s, std::int64_t i, std::int64_t k);
std::int64_t place_in_b(const MatmulForm& form, std::int64_t s, std::int64_t j, std::int64_t k);
/// Place of element [s, i, j] in the output.
std::int64_t place_in_out(const MatmulForm& form, std::int64_t s, std::int64_t i, std::int64_t j);

/// True when the view of `a` ([s, i, k]) or `b` ([s, j, k]) names every element of the tensor once:
/// a reshape and a permutation, which can be done when the tensor is stored.
bool view_is_permutation(const MatmulForm& form, const Access& access);

/// "S = 1; I = n, h, w = 6272; J = f = 64; K = y, x, c = 576", then the views of the tensors.
std::string to_string(const MatmulForm& form);

}  // namespace ladder
