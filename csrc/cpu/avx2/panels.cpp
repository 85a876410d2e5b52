// SPDX-License-Identifier: Apache-2.0
//
// Decoded tiles times many tokens. Tokens lie across the lanes and columns of a decoded row are
// broadcast, so that rows are read as the decoders write them and no sum is over lanes. A panel of
// 24 tokens by 256 columns stays in the first-level cache for all rows of a tile, a piece of a tile
// in the second-level cache for all tokens. x comes from the third: of each panel the next one is
// read ahead by instructions, because the hardware does not see that far.
#include "cpu/avx2/loops.h"

namespace ladder::cpu::avx2 {
namespace {

/// 3 vectors of tokens by 4 rows: 12 sums, 3 vectors of x and a weight are the 16 registers.
constexpr std::int64_t kMostVectors = 3;
constexpr std::int64_t kPiece = 256;  ///< columns

/// A panel takes five sixths of the time that Kernels::multiply takes for as many tokens, which has
/// no lanes to fill. Measured from 16 tokens on.
bool quicker(std::int64_t tokens) {
  return tokens >= 16 && (tokens + kLanes - 1) / kLanes * kLanes * 5 <= tokens * 6;
}

/// Vectors of tokens that lie together: [columns][vectors][8].
struct Panel {
  std::int64_t first, vectors;
};

/// The panel of `vector` of `count`. Panels have three vectors, the last ones two where three would
/// leave one alone, whose four sums would wait for each other.
Panel panel_of(std::int64_t vector, std::int64_t count) {
  const std::int64_t left = count % kMostVectors;
  const std::int64_t whole = left == 1 && count > 1 ? count - 4 : count - left;
  if (vector < whole) return {vector - vector % kMostVectors, kMostVectors};
  const std::int64_t vectors = count == 1 ? 1 : 2;
  return {vector - (vector - whole) % vectors, vectors};
}

void transpose(__m256 (&v)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

void pack(const Job& job, const float* rows, std::int64_t token, std::int64_t tokens, float* to) {
  const std::int64_t vector = token / kLanes;
  const Panel panel = panel_of(vector, (tokens + kLanes - 1) / kLanes);
  float* out = to + panel.first * kLanes * job.padded_k + (vector - panel.first) * kLanes;
  for (std::int64_t column = 0; column < job.padded_k; column += kLanes) {
    __m256 v[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = _mm256_loadu_ps(rows + i * job.stride + column);
    transpose(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) _mm256_store_ps(out + (column + i) * panel.vectors * kLanes, v[i]);
  }
}

/// y[t * y_stride + r] of kRows rows and a panel, or added to what is there. Reads ahead from
/// `next` on, a line for every four columns.
template <int kVectors>
void tile(const float* x, const float* w, std::int64_t stride, std::int64_t columns,
          bool accumulate, float* y, std::int64_t y_stride, const float* next) {
  constexpr int kTogether = 4;  // columns
  __m256 sums[kVectors][kRows];
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[v][r] = _mm256_setzero_ps();
  for (std::int64_t column = 0; column < columns; column += kTogether) {
    _mm_prefetch(reinterpret_cast<const char*>(next + column * 4), _MM_HINT_T0);
#pragma GCC unroll 4
    for (int i = 0; i < kTogether; ++i) {
      __m256 tokens[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        tokens[v] = _mm256_load_ps(x + (i * kVectors + v) * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m256 weight = _mm256_broadcast_ss(w + r * stride + i);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v)
          sums[v][r] = _mm256_fmadd_ps(weight, tokens[v], sums[v][r]);
      }
    }
    x += kTogether * kVectors * kLanes;
    w += kTogether;
  }
  const auto put = [&](std::int64_t token, __m128 sum) {
    float* to = y + token * y_stride;
    _mm_storeu_ps(to, accumulate ? _mm_add_ps(sum, _mm_loadu_ps(to)) : sum);
  };
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) {
    const __m256 low[2] = {_mm256_unpacklo_ps(sums[v][0], sums[v][1]),
                           _mm256_unpacklo_ps(sums[v][2], sums[v][3])};
    const __m256 high[2] = {_mm256_unpackhi_ps(sums[v][0], sums[v][1]),
                            _mm256_unpackhi_ps(sums[v][2], sums[v][3])};
    const __m256 fours[4] = {
        _mm256_shuffle_ps(low[0], low[1], 0x44), _mm256_shuffle_ps(low[0], low[1], 0xee),
        _mm256_shuffle_ps(high[0], high[1], 0x44), _mm256_shuffle_ps(high[0], high[1], 0xee)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      put(v * kLanes + i, _mm256_castps256_ps128(fours[i]));
      put(v * kLanes + i + 4, _mm256_extractf128_ps(fours[i], 1));
    }
  }
}

void multiply(const Job& job, int count, const float* tiles, const float* x, std::int64_t tokens,
              float* y, std::int64_t y_stride) {
  static constexpr decltype(&tile<1>) kTiles[] = {nullptr, tile<1>, tile<2>, tile<3>};
  const std::int64_t k = job.padded_k, vectors = (tokens + kLanes - 1) / kLanes;
  for (std::int64_t column = 0, columns; column < k; column += columns) {
    columns = k - column < kPiece ? k - column : kPiece;
    const auto piece = [&](const Panel& panel, std::int64_t from) {
      return x + (panel.first * k + from * panel.vectors) * kLanes;
    };
    for (std::int64_t vector = 0; vector < vectors;) {
      const Panel panel = panel_of(vector, vectors);
      const std::int64_t after = vector + panel.vectors;
      const float* next = after < vectors        ? piece(panel_of(after, vectors), column)
                          : column + columns < k ? piece(panel_of(0, vectors), column + columns)
                                                 : x;
      for (int quad = 0; quad < count; ++quad)
        kTiles[panel.vectors](piece(panel, column), tiles + quad * kRows * job.stride + column,
                              job.stride, columns, column > 0,
                              y + vector * kLanes * y_stride + quad * kRows, y_stride,
                              next + quad * columns * panel.vectors * kLanes / count);
      vector = after;
    }
  }
}

}  // namespace

const Panels kPanels{.quicker = quicker,
                     .lanes = kLanes,
                     .together = kLanes * kMostVectors,
                     .rows = 32,
                     .pack = pack,
                     .multiply = multiply};

}  // namespace ladder::cpu::avx2
