// SPDX-License-Identifier: Apache-2.0
//
// Problems of operators. Those that have no kernels yet are refused by decide(), not here: bounds
// and tile plans are of them, too.
#pragma once

#include <cstdint>

#include "expr/problem.h"
#include "expr/tensor_expr.h"

namespace ladder {

/// y[m, n] = sum_k x[m, k] * weight[n, k], times the second scale of types that have one, for at
/// most `m` tokens; without a bias, which is the layer's to add. `activation` is that of x and y.
Problem linear_of(const TType& type, std::int64_t n, std::int64_t k, Scalar activation,
                  std::int64_t m);

/// `batch` of them side by side: x [batch, m, k], weight [batch, n, k], y [batch, m, n].
Problem batched_of(const TType& type, std::int64_t batch, std::int64_t n, std::int64_t k,
                   Scalar activation, std::int64_t m);

/// A layer of experts [n, k]: products of up to `m` rows each.
Problem experts_of(const TType& type, std::int64_t n, std::int64_t k, Scalar activation,
                   std::int64_t m, const RoutedRows& rows);

/// A convolution, channels last: x [N, H, W, C], weight [F, Y, X, C], y [N, H, W, F].
Problem convolution_of(const Convolution& convolution, const TType& type, Scalar activation);

/// The same of `m` windows, wherever the last image ends.
Problem windows_of(const Windows& windows, const TType& type, std::int64_t n, Scalar activation,
                   std::int64_t m);

/// The problem that a tensor expression is; iterators of one kind are one, in order of declaration.
/// Throws Unsupported when it is no product of matrices (matmul_form), and when a or out have
/// formats that no program computes with.
Problem normalise(const TensorExpr& expr);

/// The inverse, without the epilogue. Of experts, as a batch of the products that a launch is
/// expected to have; of windows, those of whole images.
TensorExpr tensor_expr(const Problem& problem);

}  // namespace ladder
