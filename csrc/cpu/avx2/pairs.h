// SPDX-License-Identifier: Apache-2.0
//
// Decoders of 5 to 8 bits whose values are not at equal distances: see decode.h. Both bring two
// neighbouring codes to each 16 bits of a register, by a byte permutation and a product that
// shifts each 16 bits by an amount of its own.
#pragma once

#include "cpu/avx2/decode.h"

namespace ladder::cpu::avx2 {
namespace {

using Words = Constants<std::uint16_t, 16>;
constexpr auto words = [](auto value) { return constants<std::uint16_t, 16>(value); };
inline __m256i load(const Words& w) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(w.at));
}

/// Words of codes kSecond, kSecond + 2 and so on. kCrossed: word d of each half, of 8, holds a code
/// of columns 4 d and 4 d + 1, word 4 + d one of 4 d + 2 and 4 d + 3. Else they are in order.
/// The code stands in the upper kBits of kUpTo bits; what is around it is anything.
template <int kBits, bool kSecond, bool kCrossed, int kUpTo>
inline __m256i code_words(__m256i halves) {
  constexpr auto code = [](int word) {
    const int w = word % 8;
    return (kCrossed ? w % 4 * 4 + w / 4 * 2 : 2 * w) + kSecond;
  };
  static constexpr Bytes kOrder =
      bytes([code](int i) { return byte_of<kBits>(i / 16, code(i % 16 / 2) * kBits / 8 + i % 2); });
  static constexpr Words kShift =
      words([code](int i) { return 1 << (kUpTo - kBits - code(i) * kBits % 8); });
  return _mm256_mullo_epi16(_mm256_shuffle_epi8(halves, load(kOrder)), load(kShift));
}

/// Floats whose bits are those of a float16 with some exponent and mantissa bits left out: moved
/// there, the machine's own conversion does the rest, subnormal numbers and infinities included.
/// (float32 bits would need a product with a power of two, which takes subnormal numbers for zeros
/// where the user has asked the machine for that.)
template <int kBits>
struct Half {
  static constexpr int kVectors = 2, kSteps = 4;
  static constexpr Zeros kZeros = Zeros::none;
  static constexpr bool kFactor = true, kChecked = kBits == 8;
  struct Table {
    __m256i mask;
    __m128i shift;
  };
  static Table table(const Tables& t) {
    const int magnitude = ((1 << (kBits - 1)) - 1) << (11 + t.half_exponent - kBits);
    return {_mm256_set1_epi16(static_cast<short>(0x8000 | magnitude)),
            _mm_cvtsi32_si128(5 - t.half_exponent)};
  }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
    const __m256i halves = load_halves<kBits>(p);
    __m256i first, second;
    if constexpr (kBits == 8) {
      first = _mm256_slli_epi16(halves, 8);
      second = halves;
    } else {
      first = code_words<kBits, false, false, 16>(halves);
      second = code_words<kBits, true, false, 16>(halves);
    }
    // The sign stays, its copies are masked with what else is not the code's.
    first = _mm256_and_si256(_mm256_sra_epi16(first, t.shift), t.mask);
    second = _mm256_and_si256(_mm256_sra_epi16(second, t.shift), t.mask);
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(first));
    out[1] = _mm256_cvtph_ps(_mm256_castsi256_si128(second));
    out[2] = _mm256_cvtph_ps(_mm256_extracti128_si256(first, 1));
    out[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(second, 1));
  }
};

/// Codes as bytes, in the order that interleaving two planes of bytes wants: see code_words.
template <int kBits>
inline __m256i code_bytes(const std::uint8_t* p) {
  const __m256i halves = load_halves<kBits>(p);
  if constexpr (kBits == 8) {
    static constexpr Bytes kOrder =
        bytes([](int i) { return i % 8 / 2 * 4 + i % 16 / 8 * 2 + i % 2; });
    return _mm256_shuffle_epi8(halves, load(kOrder));
  }
  const __m256i first = _mm256_srli_epi16(code_words<kBits, false, true, 16>(halves), 16 - kBits);
  const __m256i second = code_words<kBits, true, true, 8 + kBits>(halves);
  return _mm256_or_si256(first,
                         _mm256_and_si256(second, _mm256_set1_epi16(((1 << kBits) - 1) << 8)));
}

/// The values whose upper two bytes are these.
inline void interleave(__m256i lower_bytes, __m256i upper_bytes, __m256 (&out)[4]) {
  const __m256i low = _mm256_unpacklo_epi8(lower_bytes, upper_bytes);
  const __m256i high = _mm256_unpackhi_epi8(lower_bytes, upper_bytes);
  out[0] = lower(low);
  out[1] = upper(low);
  out[2] = lower(high);
  out[3] = upper(high);
}

/// Tables::split: floats of many exponent bits. A look-up by the sign and the upper bits of the
/// code, three by its lower four bits, and two more for codes below 16.
template <int kBits>
struct Split {
  static constexpr int kVectors = 4, kSteps = 4;
  static constexpr Zeros kZeros = Zeros::none;
  static constexpr bool kFactor = false, kChecked = kBits == 8;
  struct Table {
    __m256i by_upper;  ///< added to the upper byte, with the sign
    __m256i is_below;  ///< by the upper bits: whether the code, less its sign, is below 16
    __m256i low[2];    ///< by the lower four bits: lower and upper byte
    __m256i below[2];  ///< the same, of codes below 16
  };
  static Table table(const Tables& t) {
    constexpr int kSign = 1 << (kBits - 5);
    alignas(16) std::uint8_t by_upper[16] = {}, is_below[16] = {};
    for (int h = 0; h < 2 * kSign; ++h) {
      const int magnitude = h % kSign;
      by_upper[h] = static_cast<std::uint8_t>(
          (magnitude == 0 ? 0 : t.planes[3][16 * magnitude] - t.planes[3][16]) |
          (h >= kSign ? 0x80 : 0));
      is_below[h] = magnitude == 0 ? 0x80 : 0;
    }
    return {plane(by_upper),
            plane(is_below),
            {plane(t.planes[2] + 16), plane(t.planes[3] + 16)},
            {plane(t.planes[2]), plane(t.planes[3])}};
  }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
    const __m256i codes = code_bytes<kBits>(p), mask = _mm256_set1_epi8(0x0f);
    const __m256i low = _mm256_and_si256(codes, mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
    const __m256i is_below = _mm256_shuffle_epi8(t.is_below, high);
    const auto byte = [&](int i) {
      return _mm256_blendv_epi8(_mm256_shuffle_epi8(t.low[i], low),
                                _mm256_shuffle_epi8(t.below[i], low), is_below);
    };
    interleave(byte(0), _mm256_add_epi8(byte(1), _mm256_shuffle_epi8(t.by_upper, high)), out);
  }
};

/// Any values: look-ups among 16 for each byte of a value, chosen by the code's upper bits.
/// kPlanes: 2 where values are bfloat16 numbers, else 4. kMirrored: Tables::mirrored_by_sign.
template <int kBits, int kPlanes, bool kMirrored>
struct Any {
  static constexpr int kVectors = 4, kSteps = 4;
  static constexpr Zeros kZeros = Zeros::none;
  static constexpr bool kFactor = false, kChecked = kBits == 8 && kMirrored;
  static constexpr int kIndex = kMirrored ? kBits - 1 : kBits;  ///< bits that choose the value
  static constexpr int kParts = 1 << (kIndex - 4);
  struct Table {
    __m256i parts[kPlanes][kParts];
  };
  static Table table(const Tables& t) {
    Table result;
    for (int i = 0; i < kPlanes; ++i)
      for (int part = 0; part < kParts; ++part)
        result.parts[i][part] = plane(t.planes[4 - kPlanes + i] + 16 * part);
    return result;
  }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
    const __m256i codes = code_bytes<kBits>(p);
    __m256i planes[kPlanes];
    const __m256i index = kBits < 8 ? codes : _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
#pragma GCC unroll 4
    for (int i = 0; i < kPlanes; ++i) planes[i] = look_up<kIndex, 0>(codes, index, t.parts[i]);
    if constexpr (kMirrored) {
      const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(codes, 8 - kBits),
                                            _mm256_set1_epi8(static_cast<char>(0x80)));
      planes[kPlanes - 1] = _mm256_or_si256(planes[kPlanes - 1], sign);
    }
    interleave(planes[kPlanes - 2], planes[kPlanes - 1], out);
    if constexpr (kPlanes == 4) {
      const __m256i low_end = _mm256_unpacklo_epi8(planes[0], planes[1]);
      const __m256i high_end = _mm256_unpackhi_epi8(planes[0], planes[1]);
      const __m256i mask = _mm256_set1_epi32(0xffff);
      const auto with = [](__m256 value, __m256i end) { return _mm256_or_ps(value, floats(end)); };
      out[0] = with(out[0], _mm256_and_si256(low_end, mask));
      out[1] = with(out[1], _mm256_srli_epi32(low_end, 16));
      out[2] = with(out[2], _mm256_and_si256(high_end, mask));
      out[3] = with(out[3], _mm256_srli_epi32(high_end, 16));
    }
  }

 private:
  /// Look-ups among parts [kFirst, kFirst + 2^(kLeft - 4)). The choice is by the upper bit of
  /// bytes.
  template <int kLeft, int kFirst>
  static __m256i look_up(__m256i codes, __m256i index, const __m256i (&parts)[kParts]) {
    if constexpr (kLeft == 4) {
      return _mm256_shuffle_epi8(parts[kFirst], index);
    } else {
      constexpr int kHalf = 1 << (kLeft - 5);
      const __m256i bit = kLeft == 8 ? codes : _mm256_slli_epi16(codes, 8 - kLeft);
      return _mm256_blendv_epi8(look_up<kLeft - 1, kFirst>(codes, index, parts),
                                look_up<kLeft - 1, kFirst + kHalf>(codes, index, parts), bit);
    }
  }
};

}  // namespace
}  // namespace ladder::cpu::avx2
