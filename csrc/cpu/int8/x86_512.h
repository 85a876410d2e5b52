// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 512 bits with products of bytes, and the decoders, for x86_loops.h.
#pragma once

#include "cpu/constants.h"
#include "cpu/int8/x86_loops.h"

namespace ladder::cpu::int8 {
namespace {

struct V {
  using Int = __m512i;
  using Float = __m512;
  static constexpr bool kRuns = false;
  static constexpr int kLanes = 16;
  static constexpr int kTokens = 6, kVectors = 2;  // 12 sums twice, 2 weights and a token

  static Int load(const void* p) { return _mm512_load_si512(p); }
  static Float load(const float* p) { return _mm512_load_ps(p); }
  static Float loadu(const float* p) { return _mm512_loadu_ps(p); }
  static void store(void* p, Int v) { _mm512_store_si512(p, v); }
  static void storeu(float* p, Float v) { _mm512_storeu_ps(p, v); }
  static Int broadcast(std::int32_t v) { return _mm512_set1_epi32(v); }
  static Float broadcast(float v) { return _mm512_set1_ps(v); }
  static Int broadcast_four(const std::uint8_t* p) {
    std::int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static Int none() { return _mm512_setzero_si512(); }
  static Float no_floats() { return _mm512_setzero_ps(); }
  static Int as_int(Float v) { return _mm512_castps_si512(v); }
  static Int to_int(Float v) { return _mm512_cvtps_epi32(v); }
  static Float to_float(Int v) { return _mm512_cvtepi32_ps(v); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float multiply(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  /// Of numbers of 16 bits: sums of 128 bytes of x are below 2^14, zeros below 2^10.
  static Int multiply_low(Int a, Int b) {
    return _mm512_madd_epi16(a, _mm512_and_si512(b, _mm512_set1_epi32(0xffff)));
  }
  static Float spread(const float* p, Int index) {
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(p));
  }
  static void prefetch(const std::uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  static float total(Float v) { return _mm512_reduce_add_ps(v); }

  static Int dot(Int acc, Int u, Int x) { return _mm512_dpbusd_epi32(acc, u, x); }
  static Int dot(Int acc, Int u1, Int x1, Int u2, Int x2) { return dot(dot(acc, u1, x1), u2, x2); }
  static std::int64_t run(const Job&) { return 0; }
  /// Not the intrinsic: g++ 12 copies every sum before and after it.
  static void step(Int& sum, Int u, Int x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(x));
  }

  static void transpose(Int (&v)[kLanes]) {
    Int t[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      v[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      v[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      v[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    // v[4 i + j] has rows 4 i to 4 i + 3 of columns j, 4 + j, 8 + j and 12 + j.
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      t[j] = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88);
      t[4 + j] = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xdd);
      t[8 + j] = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88);
      t[12 + j] = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xdd);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      v[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
      v[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
      v[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
      v[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xdd);
    }
  }
};

/// Byte indices of a permutation: index(i) for byte i.
using Bytes = Constants<std::uint8_t, 64>;
constexpr auto bytes = [](auto value) { return constants<std::uint8_t, 64>(value); };
inline __m512i load(const Bytes& b) { return _mm512_load_si512(b.at); }

/// So many bytes at p, at most 64, those from `end` on zeros.
inline __m512i load_bytes(const std::uint8_t* p, const std::uint8_t* end, std::int64_t count) {
  const std::int64_t there = end == nullptr ? count : end - p;
  const std::int64_t left = there < count ? there : count;
  if (left >= 64) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi8(left > 0 ? (__mmask64{1} << left) - 1 : 0, p);
}

/// Of bytes i of a half: byte b of qword w is byte b of the 8 codes from column
/// 32 (w / 2) + 8 (w % 2) on. With more than 4 bits the last 64 columns are loaded by themselves.
template <int kBits>
constexpr int byte_of(int i, int second) {
  const int qword = i / 8, column = 32 * (qword / 2) + 8 * (qword % 2) + 16 * second;
  const int byte = i % 8 < kBits ? i % 8 : 0;
  if (kBits > 4 && column >= 64) return 64 + (column - 64) / 8 * kBits + byte;
  return column / 8 * kBits + byte;
}

/// Codes to u.
template <int kBits, Codes::Kind kKind>
struct Map {
  struct Table {
    __m512i part[kKind != Codes::Kind::table ? 1 : kBits <= 6 ? 1 : 1 << (kBits - 6)];
  };
  static Table table(const Codes& codes) {
    Table t;
    for (auto& part : t.part) {
      const auto i = &part - t.part;
      part = _mm512_load_si512(codes.u + 64 * i);
    }
    if constexpr (kKind == Codes::Kind::flip)
      t.part[0] = _mm512_set1_epi8(static_cast<char>(1 << (kBits - 1)));
    return t;
  }
  static __m512i u(__m512i codes, const Table& t) {
    if constexpr (kKind == Codes::Kind::identity) {
      return codes;
    } else if constexpr (kKind == Codes::Kind::flip) {
      return _mm512_xor_si512(codes, t.part[0]);
    } else if constexpr (kBits <= 4) {
      return _mm512_shuffle_epi8(t.part[0], codes);
    } else if constexpr (kBits <= 6) {
      return _mm512_permutexvar_epi8(codes, t.part[0]);
    } else {
      const __m512i low = _mm512_permutex2var_epi8(t.part[0], codes, t.part[1]);
      if constexpr (kBits == 7) {
        return low;
      } else {
        const __m512i high = _mm512_permutex2var_epi8(t.part[2], codes, t.part[3]);
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
      }
    }
  }
};

template <int kBits, Codes::Kind kKind>
struct D : Map<kBits, kKind> {
  using M = Map<kBits, kKind>;
  using Table = typename M::Table;
  static constexpr bool kPacked = kBits == 4;
  static constexpr bool kBytes = kBits == 8;

  static __m512i packed(const std::uint8_t* p, const std::uint8_t* end) {
    return load_bytes(p, end, 64);
  }
  static __m512i low(__m512i packed, const Table& t) {
    return M::u(_mm512_and_si512(packed, _mm512_set1_epi8(15)), t);
  }
  static __m512i high(__m512i packed, const Table& t) {
    return M::u(_mm512_and_si512(_mm512_srli_epi16(packed, 4), _mm512_set1_epi8(15)), t);
  }

  static void halves(const std::uint8_t* p, const std::uint8_t* end, const Table& t, __m512i& first,
                     __m512i& second) {
    if constexpr (kBits == 4) {
      const __m512i codes = packed(p, end);
      first = low(codes, t);
      second = high(codes, t);
    } else if constexpr (kBits == 8) {
      const __m512i a = load_bytes(p, end, 64), b = load_bytes(p + 64, end, 64);
      const __m512i firsts = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13);
      const __m512i seconds = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
      first = M::u(_mm512_permutex2var_epi64(a, firsts, b), t);
      second = M::u(_mm512_permutex2var_epi64(a, seconds, b), t);
    } else {
      static constexpr Bytes kFirst = bytes([](int i) { return byte_of<kBits>(i, 0); });
      static constexpr Bytes kSecond = bytes([](int i) { return byte_of<kBits>(i, 1); });
      static constexpr Bytes kCuts = bytes([](int i) { return i % 8 * kBits; });
      constexpr bool kTwo = kBits > 4;
      const __m512i a = load_bytes(p, end, kTwo ? 8 * kBits : 16 * kBits);
      __m512i one, two;
      if constexpr (kTwo) {
        const __m512i b = load_bytes(p + 8 * kBits, end, 8 * kBits);
        one = _mm512_permutex2var_epi8(a, load(kFirst), b);
        two = _mm512_permutex2var_epi8(a, load(kSecond), b);
      } else {
        one = _mm512_permutexvar_epi8(load(kFirst), a);
        two = _mm512_permutexvar_epi8(load(kSecond), a);
      }
      const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
      const auto cut = [&](__m512i v) {
        return M::u(_mm512_and_si512(_mm512_multishift_epi64_epi8(load(kCuts), v), mask), t);
      };
      first = cut(one);
      second = cut(two);
    }
  }
};

}  // namespace
}  // namespace ladder::cpu::int8
