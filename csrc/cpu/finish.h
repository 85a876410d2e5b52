// SPDX-License-Identifier: Apache-2.0
// From sums of rows to y, for all ways in which a product is made.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/arrange.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"

namespace ladder::cpu {

/// What becomes of the sums of a call.
struct Finish {
  const Kernels& kernels;
  float factor;          ///< of all sums
  const float* bias;     ///< float32 [n], or null
  const void* residual;  ///< [m, n] in the dtype and with the stride of y, or null
  const Matrix& y;
};

/// y[token, row .. row + count) = sums * factor + bias + residual; the sums are lost.
inline void finish(const Finish& to, std::int64_t token, std::int64_t row, std::int64_t count,
                   float* sums) {
  for (std::int64_t i = 0; i < count; ++i) {
    sums[i] *= to.factor;
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
