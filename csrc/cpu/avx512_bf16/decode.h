// SPDX-License-Identifier: Apache-2.0
//
// Decoding to pairs of bfloat16, which one instruction multiplies and adds to a float32. A block
// of 128 columns is 4 vectors of 32 numbers: dword lane j of vector i holds column 8 j + i in its
// lower half and column 8 j + i + 4 in its upper. So a lane still covers 8 neighbouring columns,
// and what float32 kernels do 8 times per block is done 4 times.
//
// Values stay unscaled, so that they are exact: the scale multiplies the float32 sum of a group.
#pragma once

#include "cpu/avx512/decode.h"

namespace ladder::cpu::avx512_bf16 {
namespace {

using avx512::Bytes;
using avx512::bytes;
using avx512::kBlock;
using avx512::kLanes;
using avx512::load;
using avx512::Mask;
using avx512::mask_of;

constexpr int kVectors = 4;  // of a block
constexpr int kWords = 32;   // of a vector

/// bfloat16 of 32 values less a zero; exact for the integers of at most 8 bits.
inline __m512i less(const float* values, __m512 zero) {
  const __m512 low = _mm512_sub_ps(_mm512_load_ps(values), zero);
  const __m512 high = _mm512_sub_ps(_mm512_load_ps(values + kLanes), zero);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// 1 to 4 bits: a lane's first four codes fit its lower 16 bits, the others its upper.
template <int kBits>
struct Narrow {
  static constexpr bool kTakesZero = true;
  struct Table {
    __m512i values;
  };
  struct Codes {
    __m512i words;
  };
  static Table table(const Tables& t) { return {_mm512_load_si512(t.high)}; }
  static Table table(const Tables& t, float zero) { return {less(t.values, _mm512_set1_ps(zero))}; }

  static Codes load_block(const std::uint8_t* p, Mask mask) {
    if constexpr (kBits == 1) {
      const __m512i lanes =
          _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(static_cast<__mmask16>(mask.first), p));
      return {_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 12))};
    } else if constexpr (kBits == 2) {
      return {_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask.first), p))};
    } else if constexpr (kBits == 3) {
      // Bits 0 to 11 of a lane's three bytes below, bits 12 to 23 above.
      static constexpr Bytes kThree = bytes([](int i) { return i / 4 * 3 + i % 4 - i % 4 / 2; });
      static constexpr avx512::Bytes kShift = bytes([](int i) { return i % 4 == 2 ? 4 : 0; });
      const __mmask64 m = mask.first & ((__mmask64{1} << 48) - 1);
      const __m512i words = _mm512_permutexvar_epi8(load(kThree), _mm512_maskz_loadu_epi8(m, p));
      return {_mm512_srlv_epi16(words, load(kShift))};
    } else {
      return {_mm512_maskz_loadu_epi8(mask.first, p)};
    }
  }
  template <int kVector>
  static __m512i vector(Codes codes, const Table& t) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi32(codes.words, kBits * kVector), t.values);
  }
};

/// 5 and 6 bits: the two bytes that hold a code are brought to its word, one vector at a time.
template <int kBits>
struct Middle {
  static constexpr bool kTakesZero = true;
  struct Table {
    __m512i low, high;
  };
  struct Codes {
    __m512i low, high;
  };
  static Table table(const Tables& t) {
    return {_mm512_load_si512(t.high), _mm512_load_si512(t.high + kWords)};
  }
  static Table table(const Tables& t, float zero) {
    const __m512 z = _mm512_set1_ps(zero);
    return {less(t.values, z), less(t.values + kWords, z)};
  }
  static Codes load_block(const std::uint8_t* p, Mask mask) {
    const __mmask64 rest = mask.second & ((__mmask64{1} << (16 * kBits - 64)) - 1);
    return {_mm512_maskz_loadu_epi8(mask.first, p), _mm512_maskz_loadu_epi8(rest, p + 64)};
  }
  /// First bit, from the lane's first, of the code of vector `v` in half `h` of a lane.
  static constexpr int bit(int v, int h) { return (v + 4 * h) * kBits; }

  template <int kVector>
  static __m512i vector(const Codes& codes, const Table& t) {
    static constexpr Bytes kPick =
        bytes([](int i) { return i / 4 * kBits + bit(kVector, i % 4 / 2) / 8 + i % 2; });
    static constexpr Bytes kShift =
        bytes([](int i) { return i % 2 == 0 ? bit(kVector, i % 4 / 2) % 8 : 0; });
    const __m512i words = _mm512_permutex2var_epi8(codes.low, load(kPick), codes.high);
    const __m512i index = _mm512_srlv_epi16(words, load(kShift));
    if constexpr (kBits == 5) return _mm512_permutexvar_epi16(index, t.low);
    return _mm512_permutex2var_epi16(t.low, index, t.high);
  }
};

/// 7 and 8 bits: two planes of bytes, interleaved.
template <int kBits>
struct Wide {
  static constexpr bool kTakesZero = false;
  using Base = avx512::Wide<kBits, true>;
  struct Table {
    const Tables* tables;
  };
  struct Codes {
    __m512i high[2], low[2];
  };
  static Table table(const Tables& t) { return {&t}; }

  static Codes load_block(const std::uint8_t* p, Mask mask, const Table& t) {
    __m512i low, high;
    Base::load_bytes(p, mask, low, high);
    // Unpacking takes byte 16 L + 8 e + q to word q of 128-bit lane L of vector 2 half + e.
    static constexpr Bytes kFirst =
        bytes([](int i) { return 8 * (i / 16 * 4 + i % 8 / 2) + i % 16 / 8 + 4 * (i % 2); });
    static constexpr Bytes kSecond =
        bytes([](int i) { return 8 * (i / 16 * 4 + i % 8 / 2) + 2 + i % 16 / 8 + 4 * (i % 2); });
    const __m512i first = _mm512_permutex2var_epi8(low, load(kFirst), high);
    const __m512i second = _mm512_permutex2var_epi8(low, load(kSecond), high);
    const auto& planes = t.tables->planes;
    return {{Base::plane(first, planes[3]), Base::plane(second, planes[3])},
            {Base::plane(first, planes[2]), Base::plane(second, planes[2])}};
  }
  template <int kVector>
  static __m512i vector(const Codes& codes, const Table&) {
    constexpr int kHalf = kVector / 2;
    return kVector % 2 == 0 ? _mm512_unpacklo_epi8(codes.low[kHalf], codes.high[kHalf])
                            : _mm512_unpackhi_epi8(codes.low[kHalf], codes.high[kHalf]);
  }
};

}  // namespace
}  // namespace ladder::cpu::avx512_bf16
