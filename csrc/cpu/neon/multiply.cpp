// SPDX-License-Identifier: Apache-2.0
//
// Decoded tiles times some tokens; see the AVX-512 file of this name.
#include <arm_neon.h>

#include "cpu/neon/convert.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu::neon {
namespace {

/// 4 rows by 4 tokens: 16 sums, 4 tokens and a weight of the 32 registers.
constexpr std::int64_t kTokens = 4, kLanes = 4;
constexpr std::int64_t kPiece = 1024;  // columns of 4 tokens, 16 KiB, stay in the first level

template <int kCount>
void tile(const float* x, const float* w, std::int64_t stride, std::int64_t columns,
          bool accumulate, float* y, std::int64_t y_stride) {
  float32x4_t sums[kCount][kRows];
  for (auto& token : sums)
    for (auto& sum : token) sum = vdupq_n_f32(0);
  for (std::int64_t i = 0; i < columns; i += kLanes) {
    float32x4_t tokens[kCount];
    for (int t = 0; t < kCount; ++t) tokens[t] = vld1q_f32(x + t * stride + i);
    for (int r = 0; r < kRows; ++r) {
      const float32x4_t weight = vld1q_f32(w + r * stride + i);
      for (int t = 0; t < kCount; ++t) sums[t][r] = vfmaq_f32(sums[t][r], weight, tokens[t]);
    }
  }
  for (int t = 0; t < kCount; ++t)
    for (int r = 0; r < kRows; ++r)
      y[t * y_stride + r] = vaddvq_f32(sums[t][r]) + (accumulate ? y[t * y_stride + r] : 0.0f);
}

}  // namespace

void multiply(const Job& job, const Rows*, int count, const void* tiles, const void* arranged,
              std::int64_t tokens, float* y, std::int64_t y_stride) {
  static constexpr Tile kTiles[] = {nullptr, tile<1>, tile<2>, tile<3>, tile<4>};
  const auto some = [](std::int64_t left) { return left < kTokens ? left : kTokens; };
  multiply_pieces<kPiece>(job, count, tiles, arranged, tokens, y, y_stride, kTiles, some);
}

}  // namespace ladder::cpu::neon
