// SPDX-License-Identifier: Apache-2.0
//
// Decoding in registers. A block is 128 columns, and decodes to 8 vectors of 16 float32. Lane j of
// vector i is column 8 j + i, for every format of at most 8 bits: the 8 codes of a lane are whole
// bytes, so one load, and at most one byte permutation, puts them in that lane's 32 bits, and a
// shift by a constant brings each in turn to where the table look-up wants it. x is put into the
// same order once per call, so the order costs nothing.
//
// Look-ups ignore the bits of an index above those they need, and Tables repeats a table to fill
// the look-up, so codes are never masked.
//
// A decoder D has
//   Table                         what it needs in registers, and Table table(const Tables&)
//   Codes                         one block, loaded with `Mask` bytes present (the rest are zeros)
//   vectors<kHalf>(codes, table, out)   4 of the 8 vectors
#pragma once

#include <immintrin.h>

#include "cpu/constants.h"
#include "cpu/kernels.h"

namespace ladder::cpu::avx512 {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr int kLanes = 16;
constexpr int kHalf = 4;  // vectors in half a block

/// Bytes of a block that exist in the row: all of them, but in its last block.
struct Mask {
  __mmask64 first, second;
};

inline Mask mask_of(std::int64_t bytes) {
  const auto ones = [](std::int64_t count) -> __mmask64 {
    return count >= 64 ? ~__mmask64{0} : count <= 0 ? 0 : (__mmask64{1} << count) - 1;
  };
  return {ones(bytes), ones(bytes - 64)};
}

/// Byte indices of a permutation: index(i) for byte i.
using Bytes = Constants<std::uint8_t, 64>;
constexpr auto bytes = [](auto value) { return constants<std::uint8_t, 64>(value); };
inline __m512i load(const Bytes& b) { return _mm512_load_si512(b.at); }

/// 1 to 4 bits: the 8 codes of a lane fit its 32 bits and the table fits one register.
template <int kBits>
struct Narrow {
  static constexpr bool kFolds = true;  ///< scale and zero go into the table, not the products
  struct Table {
    __m512 values;
  };
  struct Codes {
    __m512i lanes;
  };
  static Table table(const Tables& t) { return {_mm512_load_ps(t.values)}; }

  static Codes load_block(const std::uint8_t* p, Mask mask) {
    if constexpr (kBits == 1) {
      const auto m = static_cast<__mmask16>(mask.first);
      return {_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, p))};
    } else if constexpr (kBits == 2) {
      const auto m = static_cast<__mmask32>(mask.first);
      return {_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi8(m, p))};
    } else if constexpr (kBits == 3) {
      static constexpr Bytes kThree = bytes([](int i) { return i / 4 * 3 + i % 4; });
      const __mmask64 m = mask.first & ((__mmask64{1} << 48) - 1);
      return {_mm512_permutexvar_epi8(load(kThree), _mm512_maskz_loadu_epi8(m, p))};
    } else {
      return {_mm512_maskz_loadu_epi8(mask.first, p)};
    }
  }
  template <int kVector>
  static __m512 vector(Codes codes, const Table& t) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(codes.lanes, kBits * kVector), t.values);
  }
  template <int kWhich>
  static void vectors(Codes codes, const Table& t, __m512 (&out)[kHalf]) {
    out[0] = vector<kWhich * 4>(codes, t);
    out[1] = vector<kWhich * 4 + 1>(codes, t);
    out[2] = vector<kWhich * 4 + 2>(codes, t);
    out[3] = vector<kWhich * 4 + 3>(codes, t);
  }
};

/// 5 and 6 bits: a lane's codes in two registers of 4 codes each.
template <int kBits>
struct PairCodes {
  __m512i lanes[2];

  /// Code 0 of the half at bit 0 (first half) or kBits * 4 % 8 (second).
  static constexpr int kSecondBit = kBits * 4 % 8;
  static PairCodes load_block(const std::uint8_t* p, Mask mask) {
    static constexpr Bytes kFirst = bytes([](int i) { return i / 4 * kBits + i % 4; });
    static constexpr Bytes kSecond =
        bytes([](int i) { return i / 4 * kBits + kBits * 4 / 8 + i % 4; });
    const __mmask64 rest = mask.second & ((__mmask64{1} << (16 * kBits - 64)) - 1);
    const __m512i low = _mm512_maskz_loadu_epi8(mask.first, p);
    const __m512i high = _mm512_maskz_loadu_epi8(rest, p + 64);
    return {{_mm512_permutex2var_epi8(low, load(kFirst), high),
             _mm512_permutex2var_epi8(low, load(kSecond), high)}};
  }
};

struct Five {
  static constexpr bool kFolds = false;
  struct Table {
    __m512 low, high;
  };
  using Codes = PairCodes<5>;
  static Table table(const Tables& t) {
    return {_mm512_load_ps(t.values), _mm512_load_ps(t.values + 16)};
  }
  static Codes load_block(const std::uint8_t* p, Mask m) { return Codes::load_block(p, m); }
  template <int kVector>
  static __m512 one(const Codes& codes, const Table& t) {
    constexpr int kBit = (kVector < kHalf ? 0 : Codes::kSecondBit) + kVector % kHalf * 5;
    return _mm512_permutex2var_ps(t.low, _mm512_srli_epi32(codes.lanes[kVector / kHalf], kBit),
                                  t.high);
  }
  template <int kWhich>
  static void vectors(const Codes& codes, const Table& t, __m512 (&out)[kHalf]) {
    out[0] = one<kWhich * kHalf>(codes, t);
    out[1] = one<kWhich * kHalf + 1>(codes, t);
    out[2] = one<kWhich * kHalf + 2>(codes, t);
    out[3] = one<kWhich * kHalf + 3>(codes, t);
  }
};

/// A look-up of 64 halves of float32: the code must stand in bits 16 to 21 to become the upper
/// half, in bits 0 to 5 to become the lower. kExact: the lower halves are zeros.
template <bool kExact>
struct Six {
  static constexpr bool kFolds = false;
  struct Table {
    __m512i high[2], low[2];
  };
  using Codes = PairCodes<6>;
  static Table table(const Tables& t) {
    return {{_mm512_load_si512(t.high), _mm512_load_si512(t.high + 32)},
            {_mm512_load_si512(t.low), _mm512_load_si512(t.low + 32)}};
  }
  static Codes load_block(const std::uint8_t* p, Mask m) { return Codes::load_block(p, m); }
  template <int kAt>  // the bit where the code stands
  static __m512 vector(__m512i lanes, const Table& t) {
    __m512i index;
    if constexpr (kAt <= 16) {
      index = _mm512_slli_epi32(lanes, 16 - kAt);
    } else {
      index = _mm512_srli_epi32(lanes, kAt - 16);
    }
    __m512i value = _mm512_maskz_permutex2var_epi16(0xaaaaaaaa, t.high[0], index, t.high[1]);
    if constexpr (!kExact) {
      const __m512i low = _mm512_maskz_permutex2var_epi16(0x55555555, t.low[0],
                                                          _mm512_srli_epi32(lanes, kAt), t.low[1]);
      value = _mm512_or_si512(value, low);
    }
    return _mm512_castsi512_ps(value);
  }
  template <int kVector>
  static __m512 one(const Codes& codes, const Table& t) {
    static_assert(Codes::kSecondBit == 0);
    return vector<kVector % kHalf * 6>(codes.lanes[kVector / kHalf], t);
  }
  template <int kWhich>
  static void vectors(const Codes& codes, const Table& t, __m512 (&out)[kHalf]) {
    out[0] = one<kWhich * kHalf>(codes, t);
    out[1] = one<kWhich * kHalf + 1>(codes, t);
    out[2] = one<kWhich * kHalf + 2>(codes, t);
    out[3] = one<kWhich * kHalf + 3>(codes, t);
  }
};

/// 7 and 8 bits: codes become bytes, look-ups give the bytes of the float32 one plane at a time,
/// unpacking interleaves the planes.
template <int kBits, bool kExact>
struct Wide {
  static constexpr bool kFolds = false;
  struct Table {
    const Tables* tables;
  };
  struct Codes {
    __m512i bytes[2];
  };
  static Table table(const Tables& t) { return {&t}; }

  /// The codes as bytes, in the order of columns.
  static void load_bytes(const std::uint8_t* p, Mask mask, __m512i& low, __m512i& high) {
    // 8 codes of 7 bits are 7 bytes: one qword; multishift then cuts it into 8 bytes.
    static constexpr Bytes kSeven = bytes([](int i) { return i / 8 * 7 + i % 8; });
    static constexpr Bytes kCuts = bytes([](int i) { return i % 8 * 7; });
    if constexpr (kBits == 8) {
      low = _mm512_maskz_loadu_epi8(mask.first, p);
      high = _mm512_maskz_loadu_epi8(mask.second, p + 64);
    } else {
      constexpr __mmask64 kBytes = (__mmask64{1} << 56) - 1;
      low = _mm512_maskz_loadu_epi8(mask.first & kBytes, p);
      high = _mm512_maskz_loadu_epi8((mask.first >> 56 | mask.second << 8) & kBytes, p + 56);
      low = _mm512_multishift_epi64_epi8(load(kCuts), _mm512_permutexvar_epi8(load(kSeven), low));
      high = _mm512_multishift_epi64_epi8(load(kCuts), _mm512_permutexvar_epi8(load(kSeven), high));
    }
  }
  static Codes load_block(const std::uint8_t* p, Mask mask) {
    __m512i low, high;
    load_bytes(p, mask, low, high);
    // Unpacking twice takes byte 16 L + 4 p + r to lane 4 L + r of vector p: put code
    // 8 lane + 4 half + p there.
    static constexpr Bytes kFirst =
        bytes([](int i) { return 8 * (i / 16 * 4 + i % 4) + i % 16 / 4; });
    static constexpr Bytes kSecond =
        bytes([](int i) { return 8 * (i / 16 * 4 + i % 4) + 4 + i % 16 / 4; });
    return {{_mm512_permutex2var_epi8(low, load(kFirst), high),
             _mm512_permutex2var_epi8(low, load(kSecond), high)}};
  }
  static __m512i plane(__m512i codes, const std::uint8_t* t) {
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(t), codes, _mm512_load_si512(t + 64));
    if constexpr (kBits == 7) return low;
    const __m512i high =
        _mm512_permutex2var_epi8(_mm512_load_si512(t + 128), codes, _mm512_load_si512(t + 192));
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
  }
  template <int kWhich>
  static void vectors(const Codes& codes, const Table& t, __m512 (&out)[kHalf]) {
    const __m512i c = codes.bytes[kWhich];
    const __m512i p3 = plane(c, t.tables->planes[3]), p2 = plane(c, t.tables->planes[2]);
    __m512i low01 = _mm512_setzero_si512(), low23 = low01;
    if constexpr (!kExact) {
      const __m512i p1 = plane(c, t.tables->planes[1]), p0 = plane(c, t.tables->planes[0]);
      low01 = _mm512_unpacklo_epi8(p0, p1);
      low23 = _mm512_unpackhi_epi8(p0, p1);
    }
    const __m512i high01 = _mm512_unpacklo_epi8(p2, p3), high23 = _mm512_unpackhi_epi8(p2, p3);
    out[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low01, high01));
    out[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low01, high01));
    out[2] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low23, high23));
    out[3] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low23, high23));
  }
};

/// float16, bfloat16 and float32 weights, in the natural order of columns.
template <Storage kStorage>
struct Plain {
  static constexpr bool kFolds = false;
  struct Table {};
  struct Codes {
    const std::uint8_t* p;
    std::int64_t bytes;
  };
  static constexpr int kSize = kStorage == Storage::float32 ? 4 : 2;
  static Table table(const Tables&) { return {}; }
  static Codes load_block(const std::uint8_t* p, std::int64_t bytes) { return {p, bytes}; }
  template <int kVector>
  static __m512 vector(Codes codes) {
    constexpr int kFirst = kVector * kLanes * kSize;
    const std::int64_t count = (codes.bytes - kFirst) / kSize;
    const auto mask = static_cast<__mmask16>(count >= kLanes ? 0xffff
                                             : count <= 0    ? 0
                                                             : (1 << count) - 1);
    if constexpr (kStorage == Storage::float32) {
      return _mm512_maskz_loadu_ps(mask, codes.p + kFirst);
    } else {
      const __m256i half = _mm256_maskz_loadu_epi16(mask, codes.p + kFirst);
      if constexpr (kStorage == Storage::float16) return _mm512_cvtph_ps(half);
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
  }
  template <int kWhich>
  static void vectors(Codes codes, const Table&, __m512 (&out)[kHalf]) {
    out[0] = vector<kWhich * 4>(codes);
    out[1] = vector<kWhich * 4 + 1>(codes);
    out[2] = vector<kWhich * 4 + 2>(codes);
    out[3] = vector<kWhich * 4 + 3>(codes);
  }
};

}  // namespace
}  // namespace ladder::cpu::avx512
