// SPDX-License-Identifier: Apache-2.0
//
// Rows of decoded pairs, side by side: a panel has one pair of each of 16 rows, then the next.
#pragma once

#include "cpu/avx512_bf16/decode.h"

namespace ladder::cpu::avx512_bf16 {
namespace {

constexpr int kHeight = 16;  ///< rows of a panel

/// Dword j of row r to dword r of row j.
inline void transpose(__m512i (&v)[kHeight]) {
  __m512i w[kHeight];
#pragma GCC unroll 8
  for (int i = 0; i < kHeight; i += 2) {
    w[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    w[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  // Quarter q of v[4 b + d]: dwords 4 q + d of rows 4 b to 4 b + 3.
#pragma GCC unroll 4
  for (int i = 0; i < kHeight; i += 4) {
    v[i] = _mm512_unpacklo_epi64(w[i], w[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(w[i], w[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(w[i + 1], w[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(w[i + 1], w[i + 3]);
  }
#pragma GCC unroll 4
  for (int d = 0; d < 4; ++d) {
    const __m512i first = _mm512_shuffle_i32x4(v[d], v[4 + d], 0x88);   // q 0, 2 of b 0, 1
    const __m512i second = _mm512_shuffle_i32x4(v[d], v[4 + d], 0xdd);  // q 1, 3
    const __m512i third = _mm512_shuffle_i32x4(v[8 + d], v[12 + d], 0x88);
    const __m512i fourth = _mm512_shuffle_i32x4(v[8 + d], v[12 + d], 0xdd);
    w[d] = _mm512_shuffle_i32x4(first, third, 0x88);
    w[4 + d] = _mm512_shuffle_i32x4(second, fourth, 0x88);
    w[8 + d] = _mm512_shuffle_i32x4(first, third, 0xdd);
    w[12 + d] = _mm512_shuffle_i32x4(second, fourth, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kHeight; ++i) v[i] = w[i];
}

/// A block of x in the order of decoded pairs; columns from `left` on are zeros.
inline void pairs_of(const std::uint16_t* x, std::int64_t left, __m512i (&pairs)[kVectors]) {
  // Word 2 j + h of vector i is column 8 j + i + 4 h: lanes below 8 lie in the first 64 columns.
  static constexpr Bytes kFirst =
      bytes([](int i) { return i % 2 != 0 ? 0 : i / 2 % kLanes / 2 * kLanes / 2 + i / 2 % 2 * 4; });
  __m512i natural[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i, left -= kWords) {
    const __mmask32 mask = left >= kWords ? ~__mmask32{0} : left <= 0 ? 0 : (1u << left) - 1;
    natural[i] = _mm512_maskz_loadu_epi16(mask, x + i * kWords);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const __m512i at = _mm512_add_epi16(load(kFirst), _mm512_set1_epi16(static_cast<short>(i)));
    const __m512i low = _mm512_permutex2var_epi16(natural[0], at, natural[1]);
    const __m512i high = _mm512_permutex2var_epi16(natural[2], at, natural[3]);
    pairs[i] = _mm512_mask_blend_epi16(0xffff0000u, low, high);
  }
}

/// The vector of pairs at `w` of `height` rows, `stride` numbers apart; zeros for other rows.
/// Dword j of v[i] is pair i of row j.
inline void panel_of(const std::uint16_t* w, std::int64_t stride, int height,
                     __m512i (&v)[kHeight]) {
#pragma GCC unroll 16
  for (int r = 0; r < kHeight; ++r)
    v[r] = r < height ? _mm512_load_si512(w + r * stride) : _mm512_setzero_si512();
  transpose(v);
}

}  // namespace
}  // namespace ladder::cpu::avx512_bf16
