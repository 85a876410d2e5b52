// SPDX-License-Identifier: Apache-2.0
//
// Decoded tiles times some tokens. Both operands run along K, so a product needs no transposition
// and the lanes are summed once per piece of K.
#include "cpu/avx512/convert.h"
#include "cpu/avx512/loops.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu::avx512 {
namespace {

/// 4 rows by 6 tokens: 24 sums and 4 weights fill the registers, and 10 loads serve 24 products.
constexpr std::int64_t kTokens = 6;
/// Columns after which the next rows are taken: 6 tokens of x (24 KiB) stay in the first level.
constexpr std::int64_t kPiece = 1024;

template <int kCount>
void tile(const float* x, const float* w, std::int64_t stride, std::int64_t columns,
          bool accumulate, float* y, std::int64_t y_stride) {
  __m512 sums[kCount][kRows];
  for (auto& token : sums)
    for (auto& sum : token) sum = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < columns; i += kLanes) {
    __m512 weights[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) weights[r] = _mm512_load_ps(w + r * stride + i);
#pragma GCC unroll 6
    for (int t = 0; t < kCount; ++t) {
      const __m512 token = _mm512_load_ps(x + t * stride + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[t][r] = _mm512_fmadd_ps(weights[r], token, sums[t][r]);
    }
  }
  for (int t = 0; t < kCount; ++t) {
    __m128 sum = totals(sums[t][0], sums[t][1], sums[t][2], sums[t][3]);
    if (accumulate) sum = _mm_add_ps(sum, _mm_loadu_ps(y + t * y_stride));
    _mm_storeu_ps(y + t * y_stride, sum);
  }
}

}  // namespace

void multiply(const Job& job, const Rows*, int count, const void* tiles, const void* arranged,
              std::int64_t tokens, float* y, std::int64_t y_stride) {
  static constexpr Tile kTiles[] = {nullptr, tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
  const auto some = [](std::int64_t left) -> std::int64_t {
    // 7 and 8 tokens are 4 + 3 and 4 + 4, not 6 and a remainder that reuses little.
    return left == 7 || left == 8 ? 4 : left < kTokens ? left : kTokens;
  };
  multiply_pieces<kPiece>(job, count, tiles, arranged, tokens, y, y_stride, kTiles, some);
}

}  // namespace ladder::cpu::avx512
