// SPDX-License-Identifier: Apache-2.0
//
// Decoding 8 neighbouring columns, which are `bits` whole bytes, to 8 float32 in their natural
// order. A decoder D has
//   Table, Table table(const Tables&)
//   Table folded(Table, Affine)          kFolds: scale and zero go into the table once per group
//   __m256 values(p, end, table)         the 8 values whose codes start at p; reads none at `end`
#pragma once

#include <immintrin.h>

#include "cpu/kernels.h"

namespace ladder::cpu::avx2 {
namespace {

constexpr int kLanes = 8;

/// The numbers that turn decoded values into weights.
struct Affine {
  __m256 scale, zero, offset;
  __m256 operator()(__m256 value) const {
    // One rounding for scale * value - offset: see the generic kernel.
    return _mm256_fmsub_ps(_mm256_sub_ps(value, zero), scale, offset);
  }
};

/// 8 bytes at p; those from `end` on are zeros.
inline std::uint64_t window(const std::uint8_t* p, const std::uint8_t* end) {
  std::uint64_t bytes = 0;
  if (end - p >= 8)
    __builtin_memcpy(&bytes, p, 8);
  else
    for (std::int64_t i = 0; i < end - p; ++i) bytes |= std::uint64_t{p[i]} << (8 * i);
  return bytes;
}

/// 1 to 4 bits: 8 codes fit 32 bits, which every lane shifts by its own amount. Permutations
/// ignore the bits of an index above those they need.
template <int kBits>
struct Narrow {
  static constexpr bool kFolds = true;
  struct Table {
    __m256 low, high;
  };
  static Table table(const Tables& t) {
    return {_mm256_load_ps(t.values), _mm256_load_ps(t.values + kLanes)};
  }
  static Table folded(const Table& t, const Affine& affine) {
    return {affine(t.low), affine(t.high)};
  }
  static __m256 values(const std::uint8_t* p, const std::uint8_t* end, const Table& t) {
    const __m256i shifts = _mm256_setr_epi32(0, kBits, 2 * kBits, 3 * kBits, 4 * kBits, 5 * kBits,
                                             6 * kBits, 7 * kBits);
    const auto bytes = static_cast<std::int32_t>(window(p, end));
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(bytes), shifts);
    const __m256 low = _mm256_permutevar8x32_ps(t.low, codes);
    if constexpr (kBits < 4) return low;
    const __m256 high = _mm256_permutevar8x32_ps(t.high, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
  }
};

/// 8 codes of 5 to 8 bits, one per lane.
template <int kBits>
inline std::uint64_t code_bytes(const std::uint8_t* p, const std::uint8_t* end) {
  return _pdep_u64(window(p, end), 0x0101010101010101u * ((1u << kBits) - 1));
}
inline __m256i lanes(std::uint64_t bytes) {
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<std::int64_t>(bytes)));
}

/// 5 to 8 bits, Tables::linear: arithmetic in place of a look-up.
template <int kBits>
struct Integer {
  static constexpr bool kFolds = false;
  struct Table {
    __m256i flip;
    __m256 first;
  };
  static Table table(const Tables& t) {
    return {_mm256_set1_epi32(t.flip), _mm256_set1_ps(t.first)};
  }
  static __m256 values(const std::uint8_t* p, const std::uint8_t* end, const Table& t) {
    const __m256i codes = _mm256_xor_si256(lanes(code_bytes<kBits>(p, end)), t.flip);
    return _mm256_add_ps(_mm256_cvtepi32_ps(codes), t.first);
  }
};

/// 5 bits: a look-up among 32 is four among 8.
struct Five {
  static constexpr bool kFolds = false;
  struct Table {
    __m256 quarter[4];
  };
  static Table table(const Tables& t) {
    return {{_mm256_load_ps(t.values), _mm256_load_ps(t.values + 8), _mm256_load_ps(t.values + 16),
             _mm256_load_ps(t.values + 24)}};
  }
  static __m256 values(const std::uint8_t* p, const std::uint8_t* end, const Table& t) {
    const __m256i codes = lanes(code_bytes<5>(p, end));
    const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
    const __m256 bit4 = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 27));
    const __m256 low = _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.quarter[0], codes),
                                        _mm256_permutevar8x32_ps(t.quarter[1], codes), bit3);
    const __m256 high = _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.quarter[2], codes),
                                         _mm256_permutevar8x32_ps(t.quarter[3], codes), bit3);
    return _mm256_blendv_ps(low, high, bit4);
  }
};

/// 6 to 8 bits of any meaning: eight loads from the table. A hardware gather of eight took 33
/// cycles on Zen 4, four times as long.
template <int kBits>
struct Wide {
  static constexpr bool kFolds = false;
  struct Table {
    const float* values;
  };
  static Table table(const Tables& t) { return {t.values}; }
  static __m256 values(const std::uint8_t* p, const std::uint8_t* end, const Table& t) {
    const std::uint64_t c = code_bytes<kBits>(p, end);
    const auto at = [&](int i) { return t.values[c >> (8 * i) & 0xff]; };
    return _mm256_setr_ps(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
  }
};

/// float16, bfloat16 and float32 weights.
template <Storage kStorage>
struct Plain {
  static constexpr bool kFolds = false;
  struct Table {};
  static Table table(const Tables&) { return {}; }
  static __m256 values(const std::uint8_t* p, const std::uint8_t* end, const Table&) {
    alignas(32) std::uint8_t buffer[32] = {};
    constexpr std::int64_t kSize = kStorage == Storage::float32 ? 32 : 16;
    if (end - p < kSize) {
      for (std::int64_t i = 0; i < end - p; ++i) buffer[i] = p[i];
      p = buffer;
    }
    if constexpr (kStorage == Storage::float32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    } else {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      if constexpr (kStorage == Storage::float16) return _mm256_cvtph_ps(half);
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
  }
};

}  // namespace
}  // namespace ladder::cpu::avx2
