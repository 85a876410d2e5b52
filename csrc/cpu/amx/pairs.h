// SPDX-License-Identifier: Apache-2.0
//
// Products of bfloat16 pairs by tile registers. A piece of 64 rows is multiplied by all tokens,
// then the next piece. Sums of a group leave the tile registers as float32; they are scaled and
// added while the products of the next group run.
#pragma once

#include "cpu/amx/rows.h"
#include "cpu/amx/sums.h"
#include "cpu/kernels.h"

namespace ladder::cpu::amx {
namespace {

/// Kernels::arrange_tile: of each vector of a block the pairs of 16 tokens side by side.
template <class F>
void arrange_tile(const Job& job, const void* x, std::int64_t x_stride, int rows, void* out) {
  const auto* from = static_cast<const std::uint16_t*>(x);
  auto* to = static_cast<std::uint8_t*>(out);
  for (std::int64_t column = 0; column < job.padded_k; column += kBlock) {
    alignas(64) __m512i v[kVectors][kSide];
    for (int t = 0; t < kSide; ++t) {
      __m512i pairs[kVectors] = {};
      if (t < rows) avx512_bf16::pairs_of(from + t * x_stride + column, job.k - column, pairs);
      F::order(pairs);
      for (int i = 0; i < kVectors; ++i) v[i][t] = pairs[i];
    }
    for (int i = 0; i < kVectors; ++i, to += kTileBytes) {
      avx512_bf16::transpose(v[i]);
      for (int pair = 0; pair < kSide; ++pair)
        _mm512_store_si512(to + pair * kRowBytes, v[i][pair]);
    }
  }
}

/// Columns of a piece: 32 KiB of 64 rows, or 48, of which half meet 16 KiB of 32 tokens, or 8, then
/// the other half.
template <class F>
inline constexpr std::int64_t kPiece = F::kTerms == 1 ? 256 : 128;
/// Groups of fewer columns than a product takes are not for these sums.
constexpr std::int64_t kLeastColumns = kWords;

/// Bytes of 32 columns of a panel.
template <class F>
inline constexpr std::int64_t kStep = static_cast<std::int64_t>(F::kTerms) * kTileBytes;

/// Four products at once, of kBlockPanels panels of rows by 4 / kBlockPanels tiles of tokens:
/// product i is of panel i % kBlockPanels and tile i / kBlockPanels of tokens.
struct Block {
  const std::uint8_t* weights;  ///< of the first panel, from `column` on
  std::int64_t panel_bytes;
  const std::uint8_t* x;    ///< the first tile of tokens
  std::int64_t tile_bytes;  ///< from there to the next
  std::int64_t column, end, group_columns;
  const float* scales;  ///< [group][64] from the first group on
  float* y;             ///< [tile of tokens][panel][16 rows][16 tokens], added to
};

struct alignas(64) Sums {
  float of[4][kSide][kSide];
};

/// 32 columns. Products of one sum wait for each other, so sums take turns.
template <class F, int kBlockPanels>
inline void products(const Block& b, const std::uint8_t* w, const std::uint8_t* x) {
  load_tile<6>(x, kRowBytes);
  if constexpr (kBlockPanels == 2) load_tile<7>(x + b.tile_bytes, kRowBytes);
#pragma GCC unroll 3
  for (int term = 0; term < F::kTerms; ++term, w += kTileBytes) {
    load_tile<4>(w, kRowBytes);
    multiply_pairs<0, 4, 6>();
    load_tile<5>(w + b.panel_bytes, kRowBytes);
    multiply_pairs<1, 5, 6>();
    if constexpr (kBlockPanels == 2) {
      multiply_pairs<2, 4, 7>();
      multiply_pairs<3, 5, 7>();
    } else {
      load_tile<4>(w + 2 * b.panel_bytes, kRowBytes);
      multiply_pairs<2, 4, 6>();
      load_tile<5>(w + 3 * b.panel_bytes, kRowBytes);
      multiply_pairs<3, 5, 6>();
    }
  }
}

/// The scaled sums of a group are added to y.
template <class F, int kBlockPanels>
inline void add(const Block& b, const Sums& sums, const float* scales) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int panel = i % kBlockPanels, m_tile = i / kBlockPanels;
    float* const y = b.y + (m_tile * kPanels + panel) * kSide * kSide;
#pragma GCC unroll 16
    for (int r = 0; r < kSide; ++r) {
      const __m512 sum = _mm512_load_ps(sums.of[i][r]);
      __m512 total = _mm512_load_ps(y + r * kSide);
      if constexpr (F::kScaled)
        total = _mm512_fmadd_ps(sum, _mm512_set1_ps(scales[panel * kSide + r]), total);
      else
        total = _mm512_add_ps(sum, total);
      _mm512_store_ps(y + r * kSide, total);
    }
  }
}

/// Sums are added after the products of the next group have begun, and stored after that:
/// instructions that wait for products would keep others from beginning.
template <class F, int kBlockPanels>
void multiply_block(const Block& b) {
  const std::uint8_t* w = b.weights;
  const std::uint8_t* x = b.x + b.column * kRowBytes / 2;
  const float* scales = b.scales;
  Sums sums[2];
  int now = 0;
  bool waits = false;
  for (std::int64_t column = b.column;; now = 1 - now) {
    const bool more = column < b.end;
    if (more) {
      const std::int64_t group_end = (column / b.group_columns + 1) * b.group_columns;
      const std::int64_t stop = group_end < b.end ? group_end : b.end;
      zero_tile<0>();
      zero_tile<1>();
      zero_tile<2>();
      zero_tile<3>();
      for (; column < stop; column += kWords, w += kStep<F>, x += kTileBytes)
        products<F, kBlockPanels>(b, w, x);
    }
    if (waits) {
      add<F, kBlockPanels>(b, sums[1 - now], scales);
      scales += kTall;
    }
    if (!more) return;
    waits = true;
    store_tile<0>(sums[now].of[0], kRowBytes);
    store_tile<1>(sums[now].of[1], kRowBytes);
    store_tile<2>(sums[now].of[2], kRowBytes);
    store_tile<3>(sums[now].of[3], kRowBytes);
  }
}

/// Kernels::multiply; y is [tokens][64] without gaps.
template <class F>
void multiply(const Job& job, const Rows* quads, int count, const void* decoded,
              const void* arranged, std::int64_t tokens, float* y, std::int64_t) {
  constexpr int kScales = kPiece<F> / kLeastColumns * kTall;
  const auto* x = static_cast<const std::uint8_t*>(arranged);
  const std::int64_t k = job.padded_k, stride = job.stride;
  const std::int64_t group_columns = F::kScaled ? job.group_columns : k;
  const std::int64_t tile_bytes = stride * kRowBytes / 2, panel_bytes = tile_bytes * F::kTerms;
  const std::int64_t tiles = (tokens + kSide - 1) / kSide;
  const int rows = count * kRows, panels = (rows + kSide - 1) / kSide;
  alignas(64) float scales[F::kScaled ? kScales : 1];
  __builtin_memset(y, 0, static_cast<std::size_t>(tiles * kSide * kTall) * sizeof *y);
  const Tiles shapes(kRowBytes);
  for (std::int64_t column = 0; column < k; column += kPiece<F>) {
    const std::int64_t end = column + kPiece<F> < k ? column + kPiece<F> : k;
    const auto* piece = static_cast<const std::uint8_t*>(decoded) + column / kWords * kStep<F>;
    if constexpr (F::kScaled) {
      float* scale = scales;
      for (std::int64_t group = column / group_columns; group * group_columns < end; ++group)
        for (int r = 0; r < kTall; ++r)
          *scale++ = r < rows ? quads[r / kRows].scales[r % kRows].scale[group] : 0.0f;
    }
    for (std::int64_t tile = 0; tile < tiles; tile += 2) {
      const bool two = tile + 1 < tiles;
      for (int panel = 0; panel < panels; panel += 2) {
        (two ? multiply_block<F, 2>
             : multiply_block<F, 4>)({.weights = piece + panel * panel_bytes,
                                      .panel_bytes = panel_bytes,
                                      .x = x + tile * tile_bytes,
                                      .tile_bytes = tile_bytes,
                                      .column = column,
                                      .end = end,
                                      .group_columns = group_columns,
                                      .scales = scales + (F::kScaled ? panel * kSide : 0),
                                      .y = y + (tile * kPanels + panel) * kSide * kSide});
        if (!two) break;
      }
    }
  }
  for (std::int64_t tile = 0; tile < tiles; ++tile) transpose_sums(y + tile * kSide * kTall);
}

}  // namespace
}  // namespace ladder::cpu::amx
