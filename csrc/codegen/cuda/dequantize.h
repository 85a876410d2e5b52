// SPDX-License-Identifier: Apache-2.0
//
// Kernels that give the values of an image, and that move columns, for weights whose groups are
// scattered over K.
#pragma once

#include <string>

#include "expr/linear.h"

namespace ladder::cuda {

/// dequantize(const u32* image, const void* scales, const void* zeros, const float* scale2,
/// const int* columns, T* out, u32 n, u32 k): the values [n, k] of the weight of `expr`, each step
/// of docs/format.md rounded to f32, the result once to `out`. Column j of the image goes to
/// column columns[j], or to j where `columns` is null. Parts that `expr` has not may be null. A
/// block of threads takes dequantize_tile(expr.bits). Activations and tokens do not matter.
std::string dequantize_source(const Linear& expr, Scalar out);

/// permute(const u32* from, u32* to, const int* columns, u32 n, u32 k): canonical rows of codes of
/// 1 to 8 bits; column j of `to` is column columns[j] of `from`. A block of 256 threads takes 64
/// rows and as many words.
std::string permute_source(int bits);

}  // namespace ladder::cuda
