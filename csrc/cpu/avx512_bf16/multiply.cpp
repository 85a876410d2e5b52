// SPDX-License-Identifier: Apache-2.0
//
// Decoded pairs times some tokens.
#include "cpu/avx512_bf16/multiply.h"

#include "cpu/avx512_bf16/loops.h"

namespace ladder::cpu::avx512_bf16 {
namespace {

/// 4 rows by 6 tokens: the 24 sums of a group and 4 weights fill the registers. The totals wait in
/// the first-level cache; once per group they are loaded, added to and stored.
constexpr int kTokens = 6;
/// Columns after which the next rows are taken: 6 tokens of x (12 KiB) stay in the first level.
constexpr std::int64_t kPiece = 1024;

template <int kCount, bool kByLane>
void tile(const Job& job, const Rows& rows, const std::uint16_t* w, const std::uint16_t* x,
          std::int64_t column, std::int64_t stop, float* y, std::int64_t y_stride) {
  alignas(64) float totals[kCount][kRows][kLanes] = {};
  const std::int64_t stride = job.stride;
  const std::int64_t group_columns = kByLane ? kBlock : job.group_columns;
  [[maybe_unused]] const auto lanes = [&] {
    if constexpr (kByLane)
      return avx512::Lanes(job);
    else
      return 0;
  }();
  const bool accumulate = column > 0;
  for (std::int64_t group = column / group_columns; column < stop; ++group) {
    __m512 part[kCount][kRows];
#pragma GCC unroll 6
    for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) part[t][r] = _mm512_setzero_ps();
    const std::int64_t group_end = (group + 1) * group_columns;
    const std::int64_t end = group_end < stop ? group_end : stop;
    for (; column < end; column += kWords) {
      __m512i weights[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) weights[r] = _mm512_load_si512(w + r * stride + column);
#pragma GCC unroll 6
      for (int t = 0; t < kCount; ++t) {
        const __m512i token = _mm512_load_si512(x + t * stride + column);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) part[t][r] = multiply_add(part[t][r], weights[r], token);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m512 scale;
      if constexpr (kByLane)
        scale = lanes.spread(rows.scales[r].scale, group);
      else
        scale = _mm512_set1_ps(rows.scales[r].scale[group]);
#pragma GCC unroll 6
      for (int t = 0; t < kCount; ++t)
        _mm512_store_ps(totals[t][r],
                        _mm512_fmadd_ps(part[t][r], scale, _mm512_load_ps(totals[t][r])));
    }
  }
  for (int t = 0; t < kCount; ++t) {
    __m128 sum = avx512::totals(_mm512_load_ps(totals[t][0]), _mm512_load_ps(totals[t][1]),
                                _mm512_load_ps(totals[t][2]), _mm512_load_ps(totals[t][3]));
    if (accumulate) sum = _mm_add_ps(sum, _mm_loadu_ps(y + t * y_stride));
    _mm_storeu_ps(y + t * y_stride, sum);
  }
}

using Tile = void (*)(const Job&, const Rows&, const std::uint16_t*, const std::uint16_t*,
                      std::int64_t, std::int64_t, float*, std::int64_t);
template <bool kByLane>
constexpr Tile kTiles[] = {nullptr,          tile<1, kByLane>, tile<2, kByLane>, tile<3, kByLane>,
                           tile<4, kByLane>, tile<5, kByLane>, tile<6, kByLane>};

}  // namespace

void multiply(const Job& job, const Rows* quads, int count, const void* tiles, const void* arranged,
              std::int64_t tokens, float* y, std::int64_t y_stride) {
  const auto* w = static_cast<const std::uint16_t*>(tiles);
  const auto* x = static_cast<const std::uint16_t*>(arranged);
  const std::int64_t k = job.padded_k, stride = job.stride;
  const Tile* const by_tokens = job.grouping == Grouping::lanes ? kTiles<true> : kTiles<false>;
  std::int64_t column = 0;
  do {
    const std::int64_t end = column + kPiece < k ? column + kPiece : k;
    for (std::int64_t token = 0; token < tokens;) {
      // 7 and 8 tokens are 4 + 3 and 4 + 4, not 6 and a remainder that reuses little.
      const std::int64_t left = tokens - token;
      const std::int64_t some = left == 7 || left == 8 ? 4 : left < kTokens ? left : kTokens;
      for (int quad = 0; quad < count; ++quad)
        by_tokens[some](job, quads[quad], w + quad * kRows * stride, x + token * stride, column,
                        end, y + token * y_stride + quad * kRows, y_stride);
      token += some;
    }
    column = end;
  } while (column < k);
}

}  // namespace ladder::cpu::avx512_bf16
