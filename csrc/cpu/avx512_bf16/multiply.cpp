// SPDX-License-Identifier: Apache-2.0
//
// Decoded pairs times some tokens. Rows lie across the lanes: a register holds one pair of each of
// 16 rows, and a token's pair is broadcast to all of them. So a sum needs no reduction, and a group
// costs one multiply-add per 16 sums where it ends. (With K across the lanes it costs that for
// every sum: a quarter of the products of a group of 128.)
#include "cpu/avx512_bf16/multiply.h"

#include "cpu/avx512_bf16/loops.h"
#include "cpu/avx512_bf16/panel.h"

namespace ladder::cpu::avx512_bf16 {
namespace {

/// 2 panels by 12 tokens: 24 sums, 2 registers of weights and a broadcast, and 14 loads serve 24
/// products. The last panel of an odd number is multiplied by itself.
constexpr int kPanels = 2;
constexpr int kTokens = 12;
/// Columns after which the next tokens are taken: 32 rows (32 KiB) and 12 tokens (12 KiB) of them
/// stay in the first-level cache.
constexpr std::int64_t kPiece = 512;

/// Pairs [column, end) of `height` rows to `out`, [pairs][kHeight] dwords; zeros for other rows.
void across(const std::uint16_t* w, std::int64_t stride, int height, std::int64_t column,
            std::int64_t end, std::uint32_t* out) {
  for (; column < end; column += kWords, out += kLanes * kHeight) {
    __m512i v[kHeight];
    panel_of(w + column, stride, height, v);
#pragma GCC unroll 16
    for (int i = 0; i < kHeight; ++i) _mm512_store_si512(out + i * kHeight, v[i]);
  }
}

/// What one call of `tile` multiplies.
struct Piece {
  const std::uint32_t* weights;  ///< [panel][columns / 2][kHeight] pairs
  std::int64_t column, end;
  std::int64_t group_columns;
  const float* scales;  ///< [group][kPanels][kHeight]
  __mmask16 rows[kPanels];
};

/// y[t * y_stride + r] of kCount tokens, added to where the piece is not the row's first.
template <int kWide, int kCount>
void tile(const Piece& piece, const std::uint16_t* x, std::int64_t stride, float* y,
          std::int64_t y_stride) {
  // Pairs of one group: whole blocks, or a run of lanes of each vector of one block.
  const bool whole = piece.group_columns % kBlock == 0;
  const std::int64_t lanes = whole ? kLanes : piece.group_columns / 8;
  const std::int64_t panel = (piece.end - piece.column) / 2 * kHeight;
  bool accumulate = piece.column > 0;
  for (std::int64_t block = piece.column; block < piece.end;) {
    const std::int64_t group = block / piece.group_columns;
    const std::int64_t group_end = (group + 1) * piece.group_columns;
    const std::int64_t end = !whole                  ? block + kBlock
                             : group_end < piece.end ? group_end
                                                     : piece.end;
    for (std::int64_t lane = 0; lane < kLanes; lane += lanes) {
      __m512 part[kCount][kWide];
#pragma GCC unroll 12
      for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 2
        for (int p = 0; p < kWide; ++p) part[t][p] = _mm512_setzero_ps();
      for (std::int64_t column = block; column < end; column += kWords) {
        const std::uint32_t* w = piece.weights + (column - piece.column) / 2 * kHeight;
        for (std::int64_t j = lane; j < lane + lanes; ++j) {
          __m512i weights[kWide];
#pragma GCC unroll 2
          for (int p = 0; p < kWide; ++p)
            weights[p] = _mm512_load_si512(w + p * panel + j * kHeight);
          const std::uint16_t* token = x + column + 2 * j;
#pragma GCC unroll 12
          for (int t = 0; t < kCount; ++t) {
            std::int32_t pair;
            __builtin_memcpy(&pair, token + t * stride, 4);
            const __m512i pairs = _mm512_set1_epi32(pair);
#pragma GCC unroll 2
            for (int p = 0; p < kWide; ++p)
              part[t][p] = multiply_add(part[t][p], weights[p], pairs);
          }
        }
      }
      const std::int64_t g = whole ? group : group + lane / lanes;
#pragma GCC unroll 2
      for (int p = 0; p < kWide; ++p) {
        const __m512 scale = _mm512_loadu_ps(piece.scales + (g * kPanels + p) * kHeight);
#pragma GCC unroll 12
        for (int t = 0; t < kCount; ++t) {
          float* to = y + t * y_stride + p * kHeight;
          const __m512 sum =
              accumulate ? _mm512_maskz_loadu_ps(piece.rows[p], to) : _mm512_setzero_ps();
          _mm512_mask_storeu_ps(to, piece.rows[p], _mm512_fmadd_ps(part[t][p], scale, sum));
        }
      }
      accumulate = true;
    }
    block = end;
  }
}

using Tile = void (*)(const Piece&, const std::uint16_t*, std::int64_t, float*, std::int64_t);
template <int kWide, int... kCounts>
constexpr void fill(Tile (&tiles)[kTokens + 1], std::integer_sequence<int, kCounts...>) {
  ((tiles[kCounts + 1] = tile<kWide, kCounts + 1>), ...);
}
struct Tiles {
  Tile by_tokens[kPanels + 1][kTokens + 1] = {};
  constexpr Tiles() {
    fill<1>(by_tokens[1], std::make_integer_sequence<int, kTokens>{});
    fill<2>(by_tokens[2], std::make_integer_sequence<int, kTokens>{});
  }
};
constexpr Tiles kTiles;

}  // namespace

void multiply(const Job& job, const Rows* quads, int count, const void* tiles, const void* arranged,
              std::int64_t tokens, float* y, std::int64_t y_stride) {
  const auto* w = static_cast<const std::uint16_t*>(tiles);
  const auto* x = static_cast<const std::uint16_t*>(arranged);
  const std::int64_t k = job.padded_k, stride = job.stride;
  const std::int64_t groups = (k + job.group_columns - 1) / job.group_columns;
  constexpr int kQuads = kHeight / kRows;
  alignas(64) std::uint32_t pairs[kPanels * kPiece / 2 * kHeight];
  // Scales of the groups that a piece touches: the narrowest have 8 columns.
  alignas(64) float scales[kPiece / 8 * kPanels * kHeight];
  for (int quad = 0; quad < count; quad += kPanels * kQuads) {
    const int rows = (count - quad < kPanels * kQuads ? count - quad : kPanels * kQuads) * kRows;
    const int wide = rows > kHeight ? 2 : 1;
    Piece piece{pairs, 0, 0, job.group_columns, nullptr, {}};
    for (int p = 0; p < wide; ++p) {
      const int height = rows - p * kHeight;
      piece.rows[p] = static_cast<__mmask16>(height >= kHeight ? 0xffff : (1u << height) - 1);
    }
    do {
      piece.end = piece.column + kPiece < k ? piece.column + kPiece : k;
      for (int p = 0; p < wide; ++p)
        across(w + p * kHeight * stride, stride, rows - p * kHeight, piece.column, piece.end,
               pairs + p * (piece.end - piece.column) / 2 * kHeight);
      const std::int64_t first = piece.column / job.group_columns;
      for (std::int64_t g = first; g < groups && g * job.group_columns < piece.end; ++g)
        for (int r = 0; r < wide * kHeight; ++r)
          scales[(g - first) * kPanels * kHeight + r] =
              r < rows ? quads[quad + r / kRows].scales[r % kRows].scale[g] : 0.0f;
      piece.scales = scales - first * kPanels * kHeight;
      for (std::int64_t token = 0; token < tokens;) {
        // Parts of one size, not full ones and a remainder that reuses little.
        const std::int64_t parts = (tokens - token + kTokens - 1) / kTokens;
        const std::int64_t some = (tokens - token + parts - 1) / parts;
        kTiles.by_tokens[wide][some](piece, x + token * stride, stride, y + token * y_stride,
                                     y_stride);
        token += some;
      }
      piece.column = piece.end;
    } while (piece.column < k);
    w += kPanels * kHeight * stride;
    y += kPanels * kHeight;
  }
}

}  // namespace ladder::cpu::avx512_bf16
