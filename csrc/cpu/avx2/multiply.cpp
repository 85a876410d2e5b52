// SPDX-License-Identifier: Apache-2.0
//
// Decoded tiles times some tokens; see the AVX-512 file of this name.
#include "cpu/avx2/convert.h"
#include "cpu/avx2/loops.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu::avx2 {
namespace {

/// 4 rows by 3 tokens: 12 sums, 3 tokens and a weight are the 16 registers.
constexpr std::int64_t kTokens = 3;
constexpr std::int64_t kPiece = 1024;  // columns of 3 tokens, 12 KiB, stay in the first level

template <int kCount>
void tile(const float* x, const float* w, std::int64_t stride, std::int64_t columns,
          bool accumulate, float* y, std::int64_t y_stride) {
  __m256 sums[kCount][kRows];
  for (auto& token : sums)
    for (auto& sum : token) sum = _mm256_setzero_ps();
  for (std::int64_t i = 0; i < columns; i += kLanes) {
    __m256 tokens[kCount];
#pragma GCC unroll 3
    for (int t = 0; t < kCount; ++t) tokens[t] = _mm256_loadu_ps(x + t * stride + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 weight = _mm256_loadu_ps(w + r * stride + i);
#pragma GCC unroll 3
      for (int t = 0; t < kCount; ++t) sums[t][r] = _mm256_fmadd_ps(weight, tokens[t], sums[t][r]);
    }
  }
  for (int t = 0; t < kCount; ++t)
    for (int r = 0; r < kRows; ++r)
      y[t * y_stride + r] = total(sums[t][r]) + (accumulate ? y[t * y_stride + r] : 0.0f);
}

}  // namespace

void multiply(const Job& job, const Rows*, int count, const void* tiles, const void* arranged,
              std::int64_t tokens, float* y, std::int64_t y_stride) {
  static constexpr Tile kTiles[] = {nullptr, tile<1>, tile<2>, tile<3>};
  const auto some = [](std::int64_t left) { return left < kTokens ? left : kTokens; };
  multiply_pieces<kPiece>(job, count, tiles, arranged, tokens, y, y_stride, kTiles, some);
}

}  // namespace ladder::cpu::avx2
