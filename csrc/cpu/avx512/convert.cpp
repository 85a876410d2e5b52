// SPDX-License-Identifier: Apache-2.0
//
// Formats of activations, scales and zeros.
#include "cpu/avx512/convert.h"

#include "cpu/avx512/decode.h"

namespace ladder::cpu::avx512 {
namespace {

inline __mmask16 first(std::int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1 << count) - 1);
}

inline __m512 widen_lanes(const void* from, std::int64_t index, Scalar dtype, __mmask16 mask) {
  if (dtype == Scalar::f32)
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(from) + index);
  const __m256i half =
      _mm256_maskz_loadu_epi16(mask, static_cast<const std::uint16_t*>(from) + index);
  if (dtype == Scalar::f16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __m256i to_bfloat16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
}

}  // namespace

void widen(const void* from, Scalar dtype, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first(count - i);
    _mm512_mask_storeu_ps(to + i, mask, widen_lanes(from, i, dtype, mask));
  }
}

void narrow(const float* from, std::int64_t count, Scalar dtype, void* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first(count - i);
    const __m512 value = _mm512_maskz_loadu_ps(mask, from + i);
    if (dtype == Scalar::f32) {
      _mm512_mask_storeu_ps(static_cast<float*>(to) + i, mask, value);
    } else {
      const __m256i half = dtype == Scalar::bf16
                               ? to_bfloat16(value)
                               : _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
      _mm256_mask_storeu_epi16(static_cast<std::uint16_t*>(to) + i, mask, half);
    }
  }
}

void look_up(const Tables& tables, const std::uint8_t* from, std::int64_t count, float* to) {
  using D = Wide<8, false>;
  // Unpacking takes byte 16 L + 4 p + r to lane 4 L + r of vector p.
  static constexpr Bytes kOrder = bytes([](int i) { return i % 16 / 4 * 16 + i / 16 * 4 + i % 4; });
  for (std::int64_t i = 0; i < count; i += 64) {
    const __m512i codes = _mm512_maskz_loadu_epi8(mask_of(count - i).first, from + i);
    __m512 values[kHalf];
    const __m512i ordered = _mm512_permutexvar_epi8(load(kOrder), codes);
    D::vectors<0>(D::Codes{{ordered, ordered}}, D::Table{&tables}, values);
    for (int p = 0; p < kHalf && i + p * kLanes < count; ++p)
      _mm512_mask_storeu_ps(to + i + p * kLanes, first(count - i - p * kLanes), values[p]);
  }
}

void gather(const float* values, std::int64_t size, const std::int32_t* index, std::int64_t count,
            float* to) {
  // One permutation of two registers holds up to 32 values; a group size of 128 has no more for
  // 4096 columns. Hardware gathers are several times slower.
  if (size <= 2 * kLanes) {
    const __m512 low = _mm512_maskz_loadu_ps(first(size), values);
    const __m512 high =
        size > kLanes ? _mm512_maskz_loadu_ps(first(size - kLanes), values + kLanes) : low;
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const __mmask16 mask = first(count - i);
      const __m512i at = _mm512_maskz_loadu_epi32(mask, index + i);
      _mm512_mask_storeu_ps(to + i, mask, _mm512_permutex2var_ps(low, at, high));
    }
    return;
  }
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first(count - i);
    const __m512i at = _mm512_maskz_loadu_epi32(mask, index + i);
    _mm512_mask_storeu_ps(to + i, mask,
                          _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, at, values, 4));
  }
}

std::int64_t position(const Job& job, std::int64_t column) {
  if (job.storage != Storage::codes) return column;
  const std::int64_t within = column % kBlock;
  return column - within + within % 8 * kLanes + within / 8;
}

void arrange(const Job& job, const void* x, Scalar dtype, void* to) {
  auto* out = static_cast<float*>(to);
  const __m512i every_eighth =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(8));
  for (std::int64_t begin = 0; begin < job.padded_k; begin += kBlock) {
    alignas(64) float natural[kBlock];
    for (int i = 0; i < 8; ++i) {
      const std::int64_t at = begin + i * kLanes;
      const __mmask16 mask = at >= job.k ? 0 : first(job.k - at);
      _mm512_store_ps(natural + i * kLanes, widen_lanes(x, at, dtype, mask));
    }
    for (int i = 0; i < 8; ++i)
      _mm512_store_ps(out + begin + i * kLanes,
                      job.storage == Storage::codes
                          ? _mm512_i32gather_ps(every_eighth, natural + i, 4)
                          : _mm512_load_ps(natural + i * kLanes));
  }
}

}  // namespace ladder::cpu::avx512
