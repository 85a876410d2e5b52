// SPDX-License-Identifier: Apache-2.0
// From sums of rows to y, for all ways in which a product is made.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/arrange.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"

namespace ladder::cpu {

/// The second scale of a whole weight; 1 where there is none, or rows have their own.
inline float second_of_all(const WeightView& view) {
  return view.scale2 != nullptr && !view.type->scale2_of_rows ? *view.scale2 : 1.0f;
}
/// [n], or null.
inline const float* seconds_of_rows(const WeightView& view) {
  return view.type->scale2_of_rows ? view.scale2 : nullptr;
}

/// What becomes of the sums of a call.
struct Finish {
  const Kernels& kernels;
  float factor;          ///< of all sums
  const float* factors;  ///< float32 [n], of rows, which multiply next; or null
  const float* bias;     ///< float32 [n], or null
  const void* residual;  ///< [m, n] in the dtype and with the stride of y, or null
  const Matrix& y;
};

/// y[token, row .. row + count) = sums * factor * factors + bias + residual; the sums are lost.
inline void finish(const Finish& to, std::int64_t token, std::int64_t row, std::int64_t count,
                   float* sums) {
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] *= to.factor;
    if (to.factors != nullptr) sums[i] *= to.factors[row + i];
    if (to.bias != nullptr) sums[i] += to.bias[row + i];
  }
  const std::int64_t size = size_of(to.y.dtype), first = (token * to.y.stride + row) * size;
  // A piece of the residual at a time, on the stack.
  constexpr std::int64_t kPiece = 256;
  float wide[kPiece];
  for (std::int64_t at = 0; at < count && to.residual != nullptr; at += kPiece) {
    const std::int64_t some = std::min(kPiece, count - at);
    to.kernels.widen(static_cast<const std::uint8_t*>(to.residual) + first + at * size, to.y.dtype,
                     some, wide);
    for (std::int64_t i = 0; i < some; ++i) sums[at + i] += wide[i];
  }
  to.kernels.narrow(sums, count, to.y.dtype, static_cast<std::uint8_t*>(to.y.data) + first);
}

}  // namespace ladder::cpu
