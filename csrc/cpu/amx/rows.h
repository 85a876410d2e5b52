// SPDX-License-Identifier: Apache-2.0
//
// Decoded rows as tile registers read them: 16 rows of 32 columns are 1 KiB, then the next 32
// columns. Numbers are bfloat16, or exact sums of such: the first term is the upper half of a
// float32, the next the upper half of the rest. Two hold 16 significant bits, three all 24.
#pragma once

#include "cpu/amx/tiles.h"
#include "cpu/avx512/convert.h"
#include "cpu/avx512_bf16/multiply.h"
#include "cpu/avx512_bf16/panel.h"

namespace ladder::cpu::amx {
namespace {

using avx512_bf16::kBlock;
using avx512_bf16::kVectors;
using avx512_bf16::kWords;

/// The upper halves of 32 numbers: of `low` in the lower words of the lanes.
inline __m512i upper_halves(__m512 low, __m512 high) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                 _mm512_castps_si512(high));
}

/// Less the upper half.
inline __m512 rest_of(__m512 value) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  return _mm512_sub_ps(value,
                       _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), upper)));
}

/// Infinities and NaN have no rest, which would be NaN.
inline __m512 finite_rest_of(__m512 value) {
  constexpr int kNotFinite = 0x99;  // both NaN, both infinities
  return _mm512_maskz_mov_ps(_knot_mask16(_mm512_fpclass_ps_mask(value, kNotFinite)),
                             rest_of(value));
}

/// The terms of 32 numbers.
template <int kTerms>
inline void split(__m512 low, __m512 high, __m512i (&terms)[kTerms]) {
  terms[0] = upper_halves(low, high);
  if constexpr (kTerms > 1) {
    low = finite_rest_of(low);
    high = finite_rest_of(high);
    terms[1] = upper_halves(low, high);
  }
  if constexpr (kTerms > 2) terms[2] = upper_halves(rest_of(low), rest_of(high));
}

/// Of four vectors, each with a pair of every 8 columns of a block, to 32 columns each: vector q
/// has quarter q of all four.
inline void quarters(__m512i (&v)[kVectors]) {
  const __m512i first = _mm512_shuffle_i32x4(v[0], v[1], 0x88);   // quarters 0, 2
  const __m512i second = _mm512_shuffle_i32x4(v[0], v[1], 0xdd);  // 1, 3
  const __m512i third = _mm512_shuffle_i32x4(v[2], v[3], 0x88);
  const __m512i fourth = _mm512_shuffle_i32x4(v[2], v[3], 0xdd);
  v[0] = _mm512_shuffle_i32x4(first, third, 0x88);
  v[1] = _mm512_shuffle_i32x4(second, fourth, 0x88);
  v[2] = _mm512_shuffle_i32x4(first, third, 0xdd);
  v[3] = _mm512_shuffle_i32x4(second, fourth, 0xdd);
}

/// Rows of bfloat16 numbers, in pairs; the sums of a group are multiplied by its scale. Columns
/// stay where decoding leaves them: groups have whole blocks.
struct Pairs {
  static constexpr int kTerms = 1;
  static constexpr bool kScaled = true;
  static void order(__m512i (&)[kVectors]) {}
  static void decode(const Job& job, const Rows& rows, void* out) {
    avx512_bf16::decode_panel(job, rows, out);
  }
};

/// The same for narrower groups: a vector has 32 neighbouring columns.
struct NarrowPairs : Pairs {
  static void order(__m512i (&block)[kVectors]) { quarters(block); }
  static void decode(const Job& job, const Rows& rows, void* out) {
    Pairs::decode(job, rows, out);
    auto* block = static_cast<std::uint8_t*>(out);
    for (std::int64_t column = 0; column < job.padded_k; column += kBlock)
      for (int r = 0; r < kRows; ++r) {
        std::uint8_t* const row = block + column / kWords * kTileBytes + r * kRowBytes;
        __m512i v[kVectors];
        for (int i = 0; i < kVectors; ++i) v[i] = _mm512_load_si512(row + i * kTileBytes);
        order(v);
        for (int i = 0; i < kVectors; ++i) _mm512_store_si512(row + i * kTileBytes, v[i]);
      }
  }
};

/// Rows of scaled numbers, each the sum of `kTheTerms` bfloat16 numbers: the tiles of its terms
/// follow each other. There are no groups.
template <int kTheTerms>
struct Split {
  static constexpr int kTerms = kTheTerms;
  static constexpr bool kScaled = false;
  static void order(__m512i (&)[kVectors]) {}
  /// float32 in pieces that the first-level cache holds, then their terms.
  static void decode(const Job& job, const Rows& rows, void* out) {
    constexpr std::int64_t kColumns = 2 * kBlock;
    alignas(64) float numbers[kRows * kColumns];
    auto* to = static_cast<std::uint8_t*>(out);
    for (std::int64_t begin = 0; begin < job.padded_k; begin += kColumns) {
      const std::int64_t end = begin + kColumns < job.padded_k ? begin + kColumns : job.padded_k;
      avx512::decode(job, rows, {begin, end, kColumns}, numbers);
      for (std::int64_t block = 0; block < end - begin; block += kBlock)
        for (int i = 0; i < kVectors; ++i, to += kTerms * kTileBytes)
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const float* const from = numbers + r * kColumns + block + i * kSide;
            __m512i terms[kTerms];
            split(_mm512_load_ps(from), _mm512_load_ps(from + kVectors * kSide), terms);
#pragma GCC unroll 3
            for (int term = 0; term < kTerms; ++term)
              _mm512_store_si512(to + term * kTileBytes + r * kRowBytes, terms[term]);
          }
    }
  }
};

}  // namespace
}  // namespace ladder::cpu::amx
