// SPDX-License-Identifier: Apache-2.0
//
// Products of bfloat16 pairs by AMX: 16 tokens by 16 rows by 32 columns in 16 cycles. Rows are
// decoded as for avx512_bf16 and put side by side as there. Sums of a group leave the tile
// registers as float32; they are scaled and added while the products of the next group run.
#include "cpu/kernels.h"

#include "cpu/amx/tiles.h"
#include "cpu/avx512_bf16/panel.h"

namespace ladder::cpu {
namespace {

using amx::kRowBytes;
using amx::kSide;
using amx::kTileBytes;
using avx512_bf16::kBlock;
using avx512_bf16::kVectors;
using avx512_bf16::kWords;

/// Columns after which the next tokens are taken: 32 KiB of 64 rows, of which 32 meet 16 KiB of 32
/// tokens, then the other 32.
constexpr std::int64_t kPiece = 256;
/// Groups of fewer columns than a product takes are for AVX-512, as are few tokens: there decoding
/// takes most of the time.
constexpr std::int64_t kLeastColumns = kWords, kLeastTokens = 5;

/// Kernels::many of float32 x: processors with AMX reach it sooner than those that `avx512` was
/// measured on.
constexpr std::int64_t kManyFloats = 176;

/// Pair i of 8 neighbouring columns is columns i and i + 4 of them, as decoded rows have it; pairs
/// follow each other in order of columns.
void arrange(const Job& job, const void* x, Scalar, void* out) {
  const auto* from = static_cast<const std::uint16_t*>(x);
  auto* to = static_cast<std::uint16_t*>(out);
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  for (std::int64_t column = 0; column < job.padded_k; column += kWords) {
    const std::int64_t left = job.k - column;
    const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (1u << left) - 1;
    const __m512i words = _mm512_maskz_loadu_epi16(mask, from + column);
    _mm512_store_si512(to + column * kSide, _mm512_shuffle_epi8(words, order));
  }
}

/// Columns [column, end) of 16 rows as weights of tile registers: 1 KiB for each 32 columns, whose
/// pairs are in the order of `arrange`.
void weights_of(const std::uint16_t* w, std::int64_t stride, int height, std::int64_t column,
                std::int64_t end, std::uint8_t* out) {
  for (; column < end; column += kBlock, out += kVectors * kTileBytes)
    for (int i = 0; i < kVectors; ++i) {
      __m512i v[kSide];
      avx512_bf16::panel_of(w + column + i * kWords, stride, height, v);
#pragma GCC unroll 16
      for (int lane = 0; lane < kSide; ++lane)
        _mm512_store_si512(out + (kVectors * lane + i) * kRowBytes, v[lane]);
    }
}

/// Four products at once: product i is of half i / 2 of up to 32 tokens by half i % 2 of 32 rows.
struct Block {
  const std::uint8_t* weights;  ///< of the first half, the second is `half` bytes behind
  std::int64_t half;
  const std::uint16_t* x;  ///< the first 16 tokens
  std::int64_t next;       ///< numbers from there to the next 16
  std::int64_t column, end, group_columns;
  const float* scales;  ///< [group][32] from the first group on
  float* y;
  std::int64_t y_stride;
};

struct alignas(64) Sums {
  float of[4][kSide][kSide];
};

/// 32 columns. Products of one sum wait for each other, so sums take turns.
template <int kHalves>
inline void products(const Block& b, const std::uint8_t* w, const std::uint16_t* x) {
  using namespace amx;
  load_tile<6>(w, kRowBytes);
  load_tile<4>(x, kRowBytes);
  multiply_pairs<0, 4, 6>();
  load_tile<7>(w + b.half, kRowBytes);
  multiply_pairs<1, 4, 7>();
  if constexpr (kHalves == 2) {
    load_tile<5>(x + b.next, kRowBytes);
    multiply_pairs<2, 5, 6>();
    multiply_pairs<3, 5, 7>();
  }
}

/// The scaled sums of a group are added to y.
template <int kHalves>
inline void add(const Block& b, const Sums& sums, const float* scales) {
  const __m512 scale[2] = {_mm512_load_ps(scales), _mm512_load_ps(scales + kSide)};
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half)
    for (int first = 0; first < kSide; first += 4)
#pragma GCC unroll 4
      for (int t = first; t < first + 4; ++t)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          float* const y = b.y + (half * kSide + t) * b.y_stride + v * kSide;
          const __m512 sum = _mm512_load_ps(sums.of[2 * half + v][t]);
          _mm512_store_ps(y, _mm512_fmadd_ps(sum, scale[v], _mm512_load_ps(y)));
        }
}

/// Sums are added after the products of the next group have begun, and stored after that:
/// instructions that wait for products would keep others from beginning.
template <int kHalves>
void multiply_block(const Block& b) {
  const std::uint8_t* w = b.weights;
  const std::uint16_t* x = b.x + b.column * kSide;
  const float* scales = b.scales;
  Sums sums[2];
  int now = 0;
  bool waits = false;
  for (std::int64_t column = b.column;; now = 1 - now) {
    const bool more = column < b.end;
    if (more) {
      const std::int64_t group_end = (column / b.group_columns + 1) * b.group_columns;
      const std::int64_t stop = group_end < b.end ? group_end : b.end;
      amx::zero_tile<0>();
      amx::zero_tile<1>();
      amx::zero_tile<2>();
      amx::zero_tile<3>();
      for (; column < stop; column += kWords, w += kTileBytes, x += kWords * kSide)
        products<kHalves>(b, w, x);
    }
    if (waits) {
      add<kHalves>(b, sums[1 - now], scales);
      scales += 2 * kSide;
    }
    if (!more) return;
    waits = true;
    amx::store_tile<0>(sums[now].of[0], kRowBytes);
    amx::store_tile<1>(sums[now].of[1], kRowBytes);
    if constexpr (kHalves == 2) {
      amx::store_tile<2>(sums[now].of[2], kRowBytes);
      amx::store_tile<3>(sums[now].of[3], kRowBytes);
    }
  }
}

void multiply(const Job& job, const Rows* quads, int count, const void* tiles, const void* arranged,
              std::int64_t tokens, float* y, std::int64_t y_stride) {
  constexpr int kRowsAtOnce = 2 * kSide, kMost = 2;
  constexpr int kScales = kPiece / kLeastColumns * kRowsAtOnce;
  const auto* w = static_cast<const std::uint16_t*>(tiles);
  const auto* x = static_cast<const std::uint16_t*>(arranged);
  const std::int64_t k = job.padded_k, stride = job.stride;
  const int all_rows = count * kRows;
  alignas(64) std::uint8_t weights[kMost][2 * kPiece / kWords * kTileBytes];
  alignas(64) float scales[kMost][kScales];
  // All of y is written, as the driver gives room for.
  const std::int64_t together = (tokens + kSide - 1) / kSide * kSide;
  __builtin_memset(y, 0, static_cast<std::size_t>(together * y_stride) * sizeof *y);
  const amx::Tiles shapes(kRowBytes);
  for (std::int64_t column = 0; column < k; column += kPiece) {
    const std::int64_t end = column + kPiece < k ? column + kPiece : k;
    const std::int64_t half = (end - column) / kWords * kTileBytes;
    const auto rows_of = [&](int part) {
      const int left = all_rows - part * kRowsAtOnce;
      return left < kRowsAtOnce ? left : kRowsAtOnce;
    };
    for (int part = 0; part * kRowsAtOnce < all_rows; ++part) {
      const int first = part * kRowsAtOnce, rows = rows_of(part);
      for (int h = 0; h < 2; ++h)
        weights_of(w + (first + h * kSide) * stride, stride, rows - h * kSide, column, end,
                   weights[part] + h * half);
      float* scale = scales[part];
      for (std::int64_t group = column / job.group_columns; group * job.group_columns < end;
           ++group)
        for (int r = 0; r < kRowsAtOnce; ++r)
          *scale++ = r < rows ? quads[(first + r) / kRows].scales[r % kRows].scale[group] : 0.0f;
    }
    for (std::int64_t t = 0; t < tokens; t += 2 * kSide) {
      const auto block = tokens - t > kSide ? multiply_block<2> : multiply_block<1>;
      for (int part = 0; part * kRowsAtOnce < all_rows; ++part)
        block({.weights = weights[part],
               .half = half,
               .x = x + t * stride,
               .next = stride * kSide,
               .column = column,
               .end = end,
               .group_columns = job.group_columns,
               .scales = scales[part],
               .y = y + t * y_stride + part * kRowsAtOnce,
               .y_stride = y_stride});
    }
  }
}

}  // namespace

const Kernels& amx_kernels() {
  struct All {
    Kernels floats = avx512_bf16_kernels(), pairs = *floats.bfloat16, tiles = pairs;
    All() {
      floats.many = kManyFloats;
      floats.bfloat16 = &pairs;
      pairs.bfloat16 = &tiles;
      pairs.fits = [](const Job& job, std::int64_t tokens) {
        return tokens >= kLeastTokens && job.group_columns >= kLeastColumns;
      };
      tiles.tiled = true;
      tiles.arrange = arrange;
      tiles.multiply = multiply;
      tiles.most_dots = [](const Job&) -> std::int64_t { return 0; };
    }
  };
  static const All all;
  return all.floats;
}

}  // namespace ladder::cpu
