// SPDX-License-Identifier: Apache-2.0
//
// Formats of activations, scales and zeros.
#include "cpu/avx2/convert.h"

#include "cpu/avx2/decode.h"

namespace ladder::cpu::avx2 {
namespace {

__m128i to_bfloat16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan));
  const __m256i high = _mm256_srli_epi32(chosen, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

void narrow_lanes(const float* from, Scalar dtype, void* to) {
  const __m256 value = _mm256_loadu_ps(from);
  if (dtype == Scalar::f32)
    _mm256_storeu_ps(static_cast<float*>(to), value);
  else
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     dtype == Scalar::bf16 ? to_bfloat16(value)
                                           : _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace

void widen(const void* from, Scalar dtype, std::int64_t count, float* to) {
  const auto* p = static_cast<const std::uint8_t*>(from);
  const std::int64_t size = dtype == Scalar::f32 ? 4 : 2;
  const auto value = [&](const std::uint8_t* at) {
    return dtype == Scalar::f32   ? Plain<Storage::float32>::one(at)
           : dtype == Scalar::f16 ? Plain<Storage::float16>::one(at)
                                  : Plain<Storage::bfloat16>::one(at);
  };
  for (; count >= kLanes; count -= kLanes, to += kLanes, p += kLanes * size)
    _mm256_storeu_ps(to, value(p));
  if (count <= 0) return;
  alignas(32) std::uint8_t bytes[32] = {};
  alignas(32) float last[kLanes];
  for (std::int64_t i = 0; i < count * size; ++i) bytes[i] = p[i];
  _mm256_store_ps(last, value(bytes));
  for (int i = 0; i < count; ++i) to[i] = last[i];
}

void narrow(const float* from, std::int64_t count, Scalar dtype, void* to) {
  auto* p = static_cast<std::uint8_t*>(to);
  const std::int64_t size = dtype == Scalar::f32 ? 4 : 2;
  for (; count >= kLanes; count -= kLanes, from += kLanes, p += kLanes * size)
    narrow_lanes(from, dtype, p);
  if (count == 0) return;
  float last[kLanes] = {};
  std::uint8_t bytes[32];
  for (int i = 0; i < count; ++i) last[i] = from[i];
  narrow_lanes(last, dtype, bytes);
  for (int i = 0; i < count * size; ++i) p[i] = bytes[i];
}

}  // namespace ladder::cpu::avx2
