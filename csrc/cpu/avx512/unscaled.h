// SPDX-License-Identifier: Apache-2.0
//
// Decoders for sums.h: the value of a code, at most less a whole zero, before any scale. Without a
// scale the values are short numbers, which opens cheaper ways than decode.h has. Zen 4 starts two
// operations of 512 bits per cycle whatever they are, so fewer operations is what counts.
//
// A decoder D has
//   Table, Table table(const Tables&)
//   Table table(const Tables&, float zero)   kTakesZero: of values less the zero
//   Codes load_block(p, mask, table)
//   vector<v>(codes, table)                  one of the block's 8 vectors, as decode.h orders them
#pragma once

#include "cpu/avx512/decode.h"

namespace ladder::cpu::avx512 {
namespace {

/// 4 bits whose values are bfloat16 numbers. A code at bit 0 of a lane looks up a float32; one at
/// bit 16 looks up the upper half of one, so one shift serves two vectors.
struct Nibbles {
  static constexpr bool kTakesZero = true;
  using Codes = Narrow<4>::Codes;
  struct Table {
    __m512 floats;
    __m512i halves;
  };
  static Table table(const Tables& t) {
    return {_mm512_load_ps(t.values), _mm512_load_si512(t.high)};
  }
  static Table table(const Tables& t, float zero) {
    static constexpr Bytes kUpper =
        bytes([](int i) { return i % 2 == 0 ? i / 2 % 16 * 2 + 1 : 0; });
    const __m512 floats = _mm512_sub_ps(_mm512_load_ps(t.values), _mm512_set1_ps(zero));
    return {floats, _mm512_permutexvar_epi16(load(kUpper), _mm512_castps_si512(floats))};
  }
  static Codes load_block(const std::uint8_t* p, Mask mask, const Table&) {
    return Narrow<4>::load_block(p, mask);
  }
  template <int kVector>
  static __m512 vector(const Codes& codes, const Table& t) {
    constexpr int kShift = kVector % 4 * 4;
    const __m512i at = kShift == 0 ? codes.lanes : _mm512_srli_epi32(codes.lanes, kShift);
    if constexpr (kVector < 4) return _mm512_permutexvar_ps(at, t.floats);
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, at, t.halves));
  }
};

/// 7 and 8 bits, Tables::linear: a permutation puts the code into the last byte of 2^23, whose
/// other bytes stand in the unused bytes of the permutation's indices. One subtraction is left.
template <int kBits>
struct Integer {
  static constexpr bool kTakesZero = true;
  struct Table {
    __m512i flip;
    __m512 less;
  };
  struct Codes {
    __m512i low, high;
  };
  static Table table(const Tables& t, float zero) {
    return {_mm512_set1_epi8(static_cast<char>(t.flip)), _mm512_set1_ps(0x1p23f - t.first + zero)};
  }
  static Table table(const Tables& t) { return table(t, 0); }
  static Codes load_block(const std::uint8_t* p, Mask mask, const Table& t) {
    __m512i low, high;
    Wide<kBits, true>::load_bytes(p, mask, low, high);
    if constexpr (kBits == 8)
      return {_mm512_xor_si512(low, t.flip), _mm512_xor_si512(high, t.flip)};
    const __m512i seven = _mm512_set1_epi8(0x7f);  // (low & seven) ^ flip
    return {_mm512_ternarylogic_epi32(low, seven, t.flip, 0x6a),
            _mm512_ternarylogic_epi32(high, seven, t.flip, 0x6a)};
  }
  template <int kVector>
  static __m512 vector(const Codes& codes, const Table& t) {
    static constexpr Bytes kIndex = bytes([](int i) {
      return i % 4 == 0 ? i * 2 + kVector : i % 4 == 3 ? 0x4b : 0;
    });
    const __m512i value =
        _mm512_mask2_permutex2var_epi8(codes.low, load(kIndex), 0x1111111111111111, codes.high);
    return _mm512_sub_ps(_mm512_castsi512_ps(value), t.less);
  }
};

/// 7 and 8 bits of bfloat16 numbers: two look-ups give the bytes of 64 of them, in pairs that a
/// shift and a mask take apart. kMirrored: the upper half of the codes has the values of the lower
/// with the other sign, so half a table does.
template <int kBits, bool kMirrored>
struct Planes {
  static constexpr bool kTakesZero = false;
  using Base = Wide<kBits, true>;
  struct Table {
    const Tables* tables;
  };
  struct Codes {
    __m512i pairs[4];
  };
  static Table table(const Tables& t) { return {&t}; }
  static Codes load_block(const std::uint8_t* p, Mask mask, const Table& t) {
    // Unpacking takes byte 16 L + 8 e + 2 d + f to half f of lane 4 L + d of pair 2 half + e.
    static constexpr Bytes kFirst =
        bytes([](int i) { return 8 * (i / 16 * 4 + i % 8 / 2) + i % 16 / 8 * 2 + i % 2; });
    static constexpr Bytes kSecond =
        bytes([](int i) { return 8 * (i / 16 * 4 + i % 8 / 2) + 4 + i % 16 / 8 * 2 + i % 2; });
    __m512i low, high;
    Base::load_bytes(p, mask, low, high);
    const __m512i c[2] = {_mm512_permutex2var_epi8(low, load(kFirst), high),
                          _mm512_permutex2var_epi8(low, load(kSecond), high)};
    Codes codes;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i upper = upper_plane(c[half], t.tables->planes[3]);
      const __m512i lower = plane(c[half], t.tables->planes[2]);
      codes.pairs[2 * half] = _mm512_unpacklo_epi8(lower, upper);
      codes.pairs[2 * half + 1] = _mm512_unpackhi_epi8(lower, upper);
    }
    return codes;
  }
  template <int kVector>
  static __m512 vector(const Codes& codes, const Table&) {
    const __m512i pair = codes.pairs[kVector / 2];
    if constexpr (kVector % 2 == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    return _mm512_castsi512_ps(
        _mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }

 private:
  static __m512i plane(__m512i codes, const std::uint8_t* t) {
    if constexpr (!kMirrored) return Base::plane(codes, t);
    return _mm512_permutex2var_epi8(_mm512_load_si512(t), codes, _mm512_load_si512(t + 64));
  }
  static __m512i upper_plane(__m512i codes, const std::uint8_t* t) {
    const __m512i value = plane(codes, t);
    if constexpr (!kMirrored) return value;
    // value | (codes & sign)
    return _mm512_ternarylogic_epi32(value, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
  }
};

/// 5 and 6 bits as decode.h has them.
template <class D>
struct Halves {
  static constexpr bool kTakesZero = false;
  using Table = typename D::Table;
  using Codes = typename D::Codes;
  static Table table(const Tables& t) { return D::table(t); }
  static Codes load_block(const std::uint8_t* p, Mask mask, const Table&) {
    return D::load_block(p, mask);
  }
  template <int kVector>
  static __m512 vector(const Codes& codes, const Table& t) {
    return D::template one<kVector>(codes, t);
  }
};

}  // namespace
}  // namespace ladder::cpu::avx512
