// SPDX-License-Identifier: Apache-2.0
//
// What kernels of several instruction sets have alike. Without external linkage: each file that
// includes this has a copy for its own machine, see cpu/kernels.h.
#pragma once

#include "cpu/kernels.h"

namespace ladder::cpu {
namespace {

/// Kernels::dot by loops for 1, 2 and 4 tokens of arranged x, T.
template <class T, class Loops>
inline void dot_some(const Loops& l, const Job& job, const Rows& rows, const void* arranged,
                     int tokens, float* out) {
  const auto* x = static_cast<const T*>(arranged);
  if (tokens == 4) return l.dot[2](job, rows, x, out);
  if (tokens >= 2) l.dot[1](job, rows, x, out);
  if (tokens != 2) l.dot[0](job, rows, x + (tokens - 1) * job.stride, out + (tokens - 1) * kRows);
}

/// y[t * y_stride + r] of kRows rows and some tokens, over `columns`; or added to what is there.
using Tile = void (*)(const float* x, const float* w, std::int64_t stride, std::int64_t columns,
                      bool accumulate, float* y, std::int64_t y_stride);

/// Kernels::multiply by tiles[n] for n tokens, kPiece columns at a time; of `left` tokens the next
/// some(left) at once.
template <std::int64_t kPiece, class Some>
inline void multiply_pieces(const Job& job, int count, const void* decoded, const void* arranged,
                            std::int64_t tokens, float* y, std::int64_t y_stride, const Tile* tiles,
                            Some some) {
  const auto* x = static_cast<const float*>(arranged);
  const auto* w = static_cast<const float*>(decoded);
  const std::int64_t k = job.padded_k, stride = job.stride, rows = count * kRows;
  std::int64_t column = 0;
  do {
    const std::int64_t columns = k - column < kPiece ? k - column : kPiece;
    for (std::int64_t token = 0; token < tokens;) {
      const std::int64_t these = some(tokens - token);
      for (std::int64_t row = 0; row < rows; row += kRows)
        tiles[these](x + token * stride + column, w + row * stride + column, stride, columns,
                     column > 0, y + token * y_stride + row, y_stride);
      token += these;
    }
    column += columns;
  } while (column < k);
}

/// Kernels::look_up and Kernels::gather, a load for each.
[[maybe_unused]] inline void look_up_each(const Tables& tables, const std::uint8_t* from,
                                          std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = tables.values[from[i]];
}
[[maybe_unused]] inline void gather_each(const float* values, std::int64_t /*size*/,
                                         const std::int32_t* index, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = values[index[i]];
}

}  // namespace
}  // namespace ladder::cpu
