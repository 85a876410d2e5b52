// SPDX-License-Identifier: Apache-2.0
//
// Weights that no pair of bfloat16 holds: float32 as sums of bfloat16, without an error. The first
// term is the upper half of the number, the next the upper half of the rest. Two hold 16
// significant bits, three all 24.
#pragma once

#include <immintrin.h>

namespace ladder::cpu::amx {
namespace {

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

}  // namespace
}  // namespace ladder::cpu::amx
