// SPDX-License-Identifier: Apache-2.0
//
// Decoding in registers, a step of 32 or 64 columns at a time. A step is units of 8 c columns: lane
// j of a unit's vector i is column c j + i. c is the decoder's choice: the codes of a lane lie next
// to each other, so that byte permutations within the halves of a register bring them there. x is
// put into the same order once per call, so the order costs nothing.
//
// A decoder D has
//   kVectors                            c, the vectors of a unit
//   kSteps                              vectors of a step, a multiple of c
//   Table, Table table(const Tables&)   what it needs in registers
//   kZeros, Table less(Table, zero)     where zeros are subtracted, see Zeros
//   kFactor                             values times Tables::half_factor are the format's
//   kChecked                            steps are bytes, which Tables::nan_mask says to look at
//   values(p, table, out)               decodes the step at p, reading its bytes and no others
#pragma once

#include <immintrin.h>

#include "cpu/constants.h"
#include "cpu/kernels.h"

namespace ladder::cpu::avx2 {
namespace {

constexpr int kLanes = 8;
constexpr std::int64_t kBlock = 64;  // columns: a whole number of every decoder's steps

/// Where a decoder's zeros are subtracted.
enum class Zeros {
  none,    ///< its formats have no zeros
  table,   ///< any, in the table: one for all lanes
  number,  ///< whole ones, in the table: one for each lane; others from the values
  value,   ///< from the values
};

/// 32 bytes for byte permutations, which see each 16 by itself: index(i) for byte i.
using Bytes = Constants<std::uint8_t, 32>;
constexpr auto bytes = [](auto value) { return constants<std::uint8_t, 32>(value); };
inline __m256i load(const Bytes& b) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(b.at));
}
constexpr int kNone = 0x80;  ///< an index that gives a zero byte

inline __m128i load_16(const std::uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i load_32(const std::uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

/// 32 codes of 5 to 8 bits, 16 in each half of the register: those of the lower half from byte 0
/// on, those of the upper from byte first_byte<kBits>(1).
template <int kBits>
inline __m256i load_halves(const std::uint8_t* p) {
  if constexpr (kBits == 8) return load_32(p);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(p)), load_16(p + 4 * kBits - 16),
                                 1);
}
template <int kBits>
constexpr int first_byte(int half) {
  return half == 0 ? 0 : 16 - 2 * kBits;
}
/// The index of byte `byte` of half `half`'s codes in what load_halves gives, or kNone past them.
template <int kBits>
constexpr int byte_of(int half, int byte) {
  return byte < 2 * kBits ? first_byte<kBits>(half) + byte : kNone;
}

/// 16 values in both halves of a register, one byte of each.
inline __m256i plane(const std::uint8_t* p) { return _mm256_broadcastsi128_si256(load_16(p)); }

inline __m256 floats(__m256i v) { return _mm256_castsi256_ps(v); }

/// The upper 16 bits of each lane as a float32; the lower 16, moved there.
inline __m256 upper(__m256i pairs) {
  return floats(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
inline __m256 lower(__m256i pairs) { return floats(_mm256_slli_epi32(pairs, 16)); }

/// 1 to 3 bits: 8 codes fit a lane, a shift brings each to where a permutation of 8 values looks.
/// Permutations ignore the bits of an index above those they need.
template <int kBits>
struct Narrow {
  static constexpr int kVectors = 8, kSteps = 8;
  static constexpr Zeros kZeros = Zeros::table;
  static constexpr bool kFactor = false, kChecked = false;
  struct Table {
    __m256 values;
  };
  static Table table(const Tables& t) { return {_mm256_load_ps(t.values)}; }
  static Table less(const Table& t, __m256 zero) { return {_mm256_sub_ps(t.values, zero)}; }

  static __m256i lanes(const std::uint8_t* p) {
    if constexpr (kBits == 1) {
      return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    } else if constexpr (kBits == 2) {
      return _mm256_cvtepu16_epi32(load_16(p));
    } else {
      static constexpr Bytes kThree =
          bytes([](int i) { return i % 4 == 3 ? kNone : i / 16 * 4 + i % 16 / 4 * 3 + i % 4; });
      const __m256i both =
          _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(p)), load_16(p + 8), 1);
      return _mm256_shuffle_epi8(both, load(kThree));
    }
  }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
    const __m256i codes = lanes(p);
#pragma GCC unroll 8
    for (int i = 0; i < kSteps; ++i)
      out[i] = _mm256_permutevar8x32_ps(t.values, _mm256_srli_epi32(codes, kBits * i));
  }
};

/// 4 bits: look-ups of 32 bytes give one byte of 32 values. kExact: the values are bfloat16
/// numbers, whose two bytes, interleaved, are pairs that a shift and a mask take apart.
template <bool kExact>
struct Nibbles {
  static constexpr int kVectors = 8, kSteps = 8;
  static constexpr Zeros kZeros = kExact ? Zeros::value : Zeros::none;
  static constexpr bool kFactor = false, kChecked = false;
  struct Table {
    __m256i planes[4];
  };
  static Table table(const Tables& t) {
    return {{plane(t.planes[0]), plane(t.planes[1]), plane(t.planes[2]), plane(t.planes[3])}};
  }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
    // Interleaving two planes takes bytes 2 d, 2 d + 1, 8 + 2 d and 9 + 2 d of each half to lane d;
    // four planes, bytes d, 4 + d, 8 + d and 12 + d.
    static constexpr Bytes kOrder = bytes([](int i) {
      return kExact ? i % 8 / 2 * 4 + i % 16 / 8 * 2 + i % 2 : i % 4 * 4 + i % 16 / 4;
    });
    const __m256i mask = _mm256_set1_epi8(0x0f);
    const __m256i both = _mm256_shuffle_epi8(load_32(p), load(kOrder));
    half(_mm256_and_si256(both, mask), t, out);
    half(_mm256_and_si256(_mm256_srli_epi16(both, 4), mask), t, out + 1);
  }

 private:
  /// The vectors of every other column.
  static void half(__m256i codes, const Table& t, __m256* out) {
    const __m256i p3 = _mm256_shuffle_epi8(t.planes[3], codes);
    const __m256i p2 = _mm256_shuffle_epi8(t.planes[2], codes);
    const __m256i low = _mm256_unpacklo_epi8(p2, p3), high = _mm256_unpackhi_epi8(p2, p3);
    if constexpr (kExact) {
      out[0] = lower(low);
      out[2] = upper(low);
      out[4] = lower(high);
      out[6] = upper(high);
    } else {
      const __m256i p1 = _mm256_shuffle_epi8(t.planes[1], codes);
      const __m256i p0 = _mm256_shuffle_epi8(t.planes[0], codes);
      const __m256i low_end = _mm256_unpacklo_epi8(p0, p1);
      const __m256i high_end = _mm256_unpackhi_epi8(p0, p1);
      out[0] = floats(_mm256_unpacklo_epi16(low_end, low));
      out[2] = floats(_mm256_unpackhi_epi16(low_end, low));
      out[4] = floats(_mm256_unpacklo_epi16(high_end, high));
      out[6] = floats(_mm256_unpackhi_epi16(high_end, high));
    }
  }
};

/// 5 to 8 bits at equal distances: a code put into the mantissa of a power of two makes the number
/// that many steps above it. One subtraction is left, and takes the zero, too.
template <int kBits>
struct Even {
  static constexpr int kVectors = 4, kSteps = 4;
  static constexpr Zeros kZeros = Zeros::number;
  static constexpr bool kFactor = false, kChecked = false;
  struct Table {
    __m256i power[2];  ///< for a code at bit 0 of a lane, and at bit kBits; flips its sign bit, too
    __m256 minus[2];
  };
  static Table table(const Tables& t) {
    Table result;
    // 2^23 steps for a code at bit 0, and 2^kBits less for one at bit kBits.
    const __m256 powers[2] = {_mm256_set1_ps(0x1p23f * t.step),
                              _mm256_set1_ps(0x1p23f / (1 << kBits) * t.step)};
    for (int i = 0; i < 2; ++i) {
      result.power[i] = _mm256_xor_si256(_mm256_castps_si256(powers[i]),
                                         _mm256_set1_epi32(t.flip << (kBits * i)));
      result.minus[i] = _mm256_sub_ps(powers[i], _mm256_set1_ps(t.first));
    }
    return result;
  }
  static Table less(const Table& t, __m256 zero) {
    return {{t.power[0], t.power[1]},
            {_mm256_add_ps(t.minus[0], zero), _mm256_add_ps(t.minus[1], zero)}};
  }
  /// The four codes of a lane from its bit 0 on.
  static __m256i lanes(const std::uint8_t* p) {
    if constexpr (kBits == 8) return load_32(p);
    static constexpr Bytes kOrder =
        bytes([](int i) { return byte_of<kBits>(i / 16, i % 16 / 4 * 4 * kBits / 8 + i % 4); });
    const __m256i moved = _mm256_shuffle_epi8(load_halves<kBits>(p), load(kOrder));
    if constexpr (kBits == 6) return moved;
    return _mm256_srlv_epi32(moved, _mm256_setr_epi32(0, 4, 0, 4, 0, 4, 0, 4));
  }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
    const __m256i first = lanes(p), second = _mm256_srli_epi32(first, 2 * kBits);
    out[0] = value<0>(first, t);
    out[1] = value<1>(first, t);
    out[2] = value<0>(second, t);
    out[3] = value<1>(second, t);
  }

 private:
  template <int kAt>
  static __m256 value(__m256i codes, const Table& t) {
    const __m256i mask = _mm256_set1_epi32(((1 << kBits) - 1) << (kBits * kAt));
    const __m256i one = _mm256_and_si256(codes, mask);
    return _mm256_sub_ps(floats(_mm256_xor_si256(one, t.power[kAt])), t.minus[kAt]);
  }
};

/// float16, bfloat16 and float32 weights.
template <Storage kStorage>
struct Plain {
  static constexpr int kVectors = 1, kSteps = 4;
  static constexpr Zeros kZeros = Zeros::none;
  static constexpr bool kFactor = false, kChecked = false;
  static constexpr int kSize = kStorage == Storage::float32 ? 4 : 2;
  struct Table {};
  static Table table(const Tables&) { return {}; }
  static __m256 one(const std::uint8_t* p) {
    if constexpr (kStorage == Storage::float32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    } else {
      const __m128i half = load_16(p);
      if constexpr (kStorage == Storage::float16) return _mm256_cvtph_ps(half);
      return floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
  }
  static void values(const std::uint8_t* p, const Table&, __m256 (&out)[kSteps]) {
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) out[i] = one(p + i * kLanes * kSize);
  }
};

}  // namespace
}  // namespace ladder::cpu::avx2
