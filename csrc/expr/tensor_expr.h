// SPDX-License-Identifier: Apache-2.0
//
// Tensor expressions: a sum of products of two tensors, each read at affine functions of iterators
// and annotated with the tType that it is stored in.
//
//     out[n, h, w, f] f16 = sum(y, x, c) in[n, 2h + y - 3, 2w + x - 3, c] f16 * w[f, y, x, c] u4
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "types/ttype.h"

namespace ladder {

struct Iterator {
  std::string name;
  std::int64_t extent;  ///< values 0 to extent - 1
  bool reduction = false;
  bool operator==(const Iterator&) const = default;
};

/// `coefficient * iterator`.
struct IndexTerm {
  int iterator;  ///< place in TensorExpr::iterators
  std::int64_t coefficient = 1;
  bool operator==(const IndexTerm&) const = default;
};

/// One index of a tensor: the sum of its terms and a constant.
struct AffineIndex {
  std::vector<IndexTerm> terms;
  std::int64_t constant = 0;
  bool operator==(const AffineIndex&) const = default;
};

/// A tensor as an expression reads or writes it. What lies outside `shape` reads as 0.
struct Access {
  std::string name;
  TType type;
  std::vector<std::int64_t> shape;
  std::vector<AffineIndex> indices;  ///< one for each dimension
  bool operator==(const Access&) const = default;
};

/// out = sum over the reduction iterators of a * b.
struct TensorExpr {
  std::vector<Iterator> iterators;
  Access a, b, out;
  bool operator==(const TensorExpr&) const = default;
};

/// Throws InvalidArgument, with the values, for extents below 1, ranks that differ, iterators that
/// do not exist, an output that is not indexed by each spatial iterator once and alone, or writes
/// outside it.
void check(const TensorExpr& expr);

/// "out[m, n] float16 = sum(k) a[m, k] float16 * w[n, k] uint4,...", then extents.
std::string to_string(const TensorExpr& expr);
/// "in[n, 2*h + y - 3, 2*w + x - 3, c]".
std::string to_string(const Access& access, const TensorExpr& expr);

/// Value of `index` at the point `at` of the iterators.
std::int64_t value(const AffineIndex& index, const std::vector<std::int64_t>& at);

/// Row-major place of the element that `access` names at `at`; -1 outside the tensor.
std::int64_t place(const Access& access, const std::vector<std::int64_t>& at);

/// The expression in double on the values of the tensors, row-major: the oracle.
/// Throws InvalidArgument for tensors of another size.
std::vector<double> evaluate(const TensorExpr& expr, const std::vector<double>& a,
                             const std::vector<double>& b);

/// The types of the three tensors of an operator.
struct OperatorTypes {
  TType a, b, out;
};

/// out[m, n] = sum(k) a[m, k] * b[n, k].
TensorExpr linear_expr(std::int64_t m, std::int64_t n, std::int64_t k, const OperatorTypes& types);

/// out[s, m, n] = sum(k) a[s, m, k] * b[s, n, k].
TensorExpr batched_matmul_expr(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k,
                               const OperatorTypes& types);

/// A convolution of square windows. `groups` divides both channel counts.
struct Convolution {
  std::int64_t batch = 1, in_channels = 1, out_channels = 1;
  std::int64_t height = 1, width = 1;  ///< of the input
  std::int64_t kernel = 1, stride = 1, padding = 0, dilation = 1, groups = 1;

  std::int64_t out_height() const { return extent(height); }
  std::int64_t out_width() const { return extent(width); }

 private:
  std::int64_t extent(std::int64_t in) const {
    return (in + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
  }
};

/// Activations [N, H, W, C], weights [F, Y, X, C], output [N, H, W, F]; with groups a dimension G
/// before C and F and before the weights' F.
TensorExpr convolution_nhwc(const Convolution& conv, const OperatorTypes& types);
/// Activations [N, C, H, W], weights [F, C, Y, X], output [N, F, H, W]; one group.
TensorExpr convolution_nchw(const Convolution& conv, const OperatorTypes& types);

}  // namespace ladder
