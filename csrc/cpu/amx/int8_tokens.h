// SPDX-License-Identifier: Apache-2.0
//
// x to 8 bits, as in cpu/int8/tokens.h, and into the order of AMX's tiles: 16 tokens side by side.
#pragma once

#include "cpu/amx/tiles.h"
#include "cpu/int8/x86_512.h"

namespace ladder::cpu::int8 {
namespace {

/// 16 tokens: for every 4 bytes of a token those of all; then scales, sums and, for float zeros,
/// sums times scales, by block or unit. Of every 32 columns of 4 bits the even ones come first.
struct TokenTile {
  std::int64_t scales, sums, float_sums, bytes;  ///< offsets in bytes, and of the next 16 tokens
  explicit TokenTile(const Job& job) {
    const std::int64_t units = job.padded_k / job.unit;
    scales = job.padded_k * amx::kSide;
    sums = scales + job.padded_k / job.block * amx::kRowBytes;
    float_sums = sums + units * amx::kRowBytes;
    bytes = float_sums + (job.float_zeros ? units * amx::kRowBytes : 0);
  }
};

/// 64 columns of one token as bytes, those from `left` on zeros.
inline __m512i quantize_64(const float* x, std::int64_t left, const float (&inverse)[2]) {
  __m128i quarters[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const std::int64_t some = left - 16 * i;
    const unsigned mask = some >= 16 ? 0xffff : some <= 0 ? 0 : (1u << some) - 1;
    const __m512 v = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + 16 * i);
    // To the nearest, ties to even.
    quarters[i] =
        _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse[i / 2]))));
  }
  const __m512i two = _mm512_inserti64x2(_mm512_castsi128_si512(quarters[0]), quarters[1], 1);
  return _mm512_inserti64x2(_mm512_inserti64x2(two, quarters[2], 2), quarters[3], 3);
}

/// The largest magnitude of `count` columns; not finite where a number is not.
inline float most_of(const float* x, std::int64_t count) {
  __m512i most = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < count; i += 16) {
    const unsigned mask = count - i >= 16 ? 0xffff : (1u << (count - i)) - 1;
    const __m512 v = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x + i);
    // Compared as integers, bits above infinity's are NaNs and win.
    most = _mm512_max_epu32(most, _mm512_castps_si512(_mm512_abs_ps(v)));
  }
  const std::uint32_t bits = _mm512_reduce_max_epu32(most);
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

/// `count` rows of x, [count][padded_k], as one tile, whose other tokens are zeros.
inline void arrange_tokens(const Job& job, const float* x, int count, void* out) {
  constexpr int kSide = amx::kSide;
  static constexpr Bytes kEvensFirst =
      bytes([](int i) { return i / 32 * 32 + i % 16 * 2 + i % 32 / 16; });
  const TokenTile at(job);
  auto* const to = static_cast<std::uint8_t*>(out);
  auto* const scales = reinterpret_cast<float*>(to + at.scales);
  const __m512i times = V::broadcast(factor(job)), ones = _mm512_set1_epi8(1);
  __m512i sum = V::none();
  for (std::int64_t b = 0; b < job.padded_k / job.block * kSide; b += kSide)
    _mm512_store_ps(scales + b, V::no_floats());
  float inverse[kSide][2];
  for (std::int64_t column = 0; column < job.padded_k; column += 64) {
    __m512i v[kSide];
    for (int t = 0; t < kSide; ++t) v[t] = V::none();
    const std::int64_t step = job.block < 64 ? job.block : 64;
    for (int t = 0; t < count; ++t) {
      const float* const row = x + t * job.padded_k;
      for (std::int64_t half = 0; half < 64; half += step) {
        const std::int64_t first = column + half, left = job.k - first;
        if (first % job.block != 0) continue;
        const float most = most_of(row + first, left < job.block ? left : job.block);
        const bool zeros = most < kLeast;
        scales[first / job.block * kSide + t] = zeros ? 0.0f : most / 127.0f;
        inverse[t][half / 32] = inverse[t][1] = zeros ? 0.0f : 127.0f / most;
      }
      v[t] = quantize_64(row + column, job.k - column, inverse[t]);
      if (job.bits == 4) v[t] = _mm512_permutexvar_epi8(load(kEvensFirst), v[t]);
    }
    V::transpose(v);
    for (int i = 0; i < kSide; ++i) {
      _mm512_store_si512(to + column * kSide + i * amx::kRowBytes, v[i]);
      sum = V::dot(sum, ones, v[i]);
      const std::int64_t done = column + 4 * (i + 1);
      if (done % job.unit != 0) continue;
      const std::int64_t unit = done / job.unit - 1;
      sum = _mm512_mullo_epi32(sum, times);
      _mm512_store_si512(to + at.sums + unit * amx::kRowBytes, sum);
      if (job.float_zeros) {
        const __m512 scale = _mm512_load_ps(scales + unit * job.unit / job.block * kSide);
        _mm512_store_ps(to + at.float_sums + unit * amx::kRowBytes,
                        V::multiply(V::to_float(sum), scale));
      }
      sum = V::none();
    }
  }
}

}  // namespace
}  // namespace ladder::cpu::int8
