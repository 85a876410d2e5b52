// SPDX-License-Identifier: Apache-2.0
//
// Vectors of 256 bits for x86_loops.h, but for the products, and decoders of 64 columns.
//
// Halves of 16 codes are 2 * bits bytes. With 2, 3, 5 and 6 bits a byte shuffle puts two codes into
// each 16-bit word that holds both; with 7 bits one word each. A multiplication shifts every word
// by its own amount.
#pragma once

#include "cpu/constants.h"
#include "cpu/int8/x86_loops.h"

namespace ladder::cpu::int8 {
namespace {

struct V256 {
  using Int = __m256i;
  using Float = __m256;
  static constexpr int kLanes = 8;

  static Int load(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  static Float load(const float* p) { return _mm256_load_ps(p); }
  static Float loadu(const float* p) { return _mm256_loadu_ps(p); }
  static void store(void* p, Int v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }
  static void storeu(float* p, Float v) { _mm256_storeu_ps(p, v); }
  static Int broadcast(std::int32_t v) { return _mm256_set1_epi32(v); }
  static Float broadcast(float v) { return _mm256_set1_ps(v); }
  static Int broadcast_four(const std::uint8_t* p) {
    std::int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
  }
  static Int none() { return _mm256_setzero_si256(); }
  static Float no_floats() { return _mm256_setzero_ps(); }
  static Int as_int(Float v) { return _mm256_castps_si256(v); }
  static Int to_int(Float v) { return _mm256_cvtps_epi32(v); }
  static Float to_float(Int v) { return _mm256_cvtepi32_ps(v); }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float multiply(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float multiply_add(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  /// Of numbers of 16 bits: sums of 128 bytes of x are below 2^14, zeros below 2^10.
  static Int multiply_low(Int a, Int b) {
    return _mm256_madd_epi16(a, _mm256_and_si256(b, _mm256_set1_epi32(0xffff)));
  }
  static Float spread(const float* p, Int index) {
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), index);
  }
  static void prefetch(const std::uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  static float total(Float v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
  static void transpose(Int (&v)[kLanes]) {
    Int t[kLanes];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      v[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      v[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      v[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      v[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      t[j] = _mm256_permute2x128_si256(v[j], v[4 + j], 0x20);
      t[4 + j] = _mm256_permute2x128_si256(v[j], v[4 + j], 0x31);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kLanes; ++j) v[j] = t[j];
  }
};

using Bytes256 = Constants<std::uint8_t, 32>;
constexpr auto bytes256 = [](auto value) { return constants<std::uint8_t, 32>(value); };
using Words256 = Constants<std::uint16_t, 16>;
constexpr auto words256 = [](auto value) { return constants<std::uint16_t, 16>(value); };
inline __m256i load(const Bytes256& b) { return V256::load(b.at); }
inline __m256i load(const Words256& w) { return V256::load(w.at); }

/// 16 bytes at p, those from `end` on zeros; all where that is null.
inline __m128i load_16(const std::uint8_t* p, const std::uint8_t* end) {
  if (end == nullptr || end - p >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  alignas(16) std::uint8_t some[16] = {};
  for (std::int64_t i = 0; i < end - p; ++i) some[i] = p[i];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(some));
}
/// 16 bytes at p and 16 at q.
inline __m256i load_two(const std::uint8_t* p, const std::uint8_t* q, const std::uint8_t* end) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(p, end)), load_16(q, end), 1);
}

/// Codes to u; kSigned: to u - 128 as signed bytes.
template <int kBits, Codes::Kind kKind, bool kSigned>
struct Map256 {
  static constexpr bool kTable = kKind == Codes::Kind::table;
  static constexpr int kParts = kTable && kBits > 4 ? 1 << (kBits - 4) : 1;
  struct Table {
    __m256i part[kParts];
  };
  static Table table(const Codes& codes) {
    const __m256i sign = _mm256_set1_epi8(kSigned ? static_cast<char>(0x80) : 0);
    Table t;
    if constexpr (kTable) {
      for (int i = 0; i < kParts; ++i)
        t.part[i] = _mm256_xor_si256(
            sign, _mm256_broadcastsi128_si256(
                      _mm_load_si128(reinterpret_cast<const __m128i*>(codes.u + 16 * i))));
    } else {
      const __m256i flip =
          _mm256_set1_epi8(kKind == Codes::Kind::flip ? static_cast<char>(1 << (kBits - 1)) : 0);
      t.part[0] = _mm256_xor_si256(sign, flip);
    }
    return t;
  }
  static __m256i u(__m256i codes, const Table& t) {
    if constexpr (kTable && kParts == 1) {
      return _mm256_shuffle_epi8(t.part[0], codes);
    } else if constexpr (kTable) {
      // Less 16 i, what is not below 16 has its top bit set by a saturating sum: looked up as 0.
      __m256i all = _mm256_setzero_si256(), left = codes;
      for (int i = 0; i < kParts; ++i) {
        const __m256i index = _mm256_adds_epu8(left, _mm256_set1_epi8(0x70));
        all = _mm256_or_si256(all, _mm256_shuffle_epi8(t.part[i], index));
        left = _mm256_sub_epi8(left, _mm256_set1_epi8(16));
      }
      return all;
    } else if constexpr (kKind == Codes::Kind::identity && !kSigned) {
      return codes;
    } else if constexpr (kKind == Codes::Kind::flip && kSigned && kBits == 8) {
      return codes;  // both flip the same bit
    } else {
      return _mm256_xor_si256(codes, t.part[0]);
    }
  }
};

/// Where codes lie in a half: the first bit of code i, or with fewer than 7 bits, which come in
/// pairs, that of code 2 (i / 2).
template <int kBits>
constexpr int bit_of(int i) {
  return kBits * (kBits < 7 ? i / 2 * 2 : i);
}
/// Byte i of the 16-bit words with the codes 2 (i / 2) + odd.
template <int kBits>
constexpr int byte_of(int i, int odd) {
  const int byte = bit_of<kBits>(i % 16 / 2 * 2 + odd) / 8 + i % 2;
  return byte < 2 * kBits ? byte : 0x80;  // not of this half, and of no code: zero
}
/// What puts the code 2 i + odd to the top of its word.
template <int kBits>
constexpr int shift_of(int i, int odd) {
  const int code = i % 8 * 2 + odd;
  const int pair = kBits < 7 ? odd * kBits : 0;
  return 1 << (16 - kBits - pair - bit_of<kBits>(code) % 8);
}

/// The codes of two halves, in order of columns, of 16-byte loads: lane 0 begins `kByte` bytes into
/// the first one, lane 1 as many into the other.
template <int kBits, int kByte>
inline __m256i cut(__m256i v) {
  static constexpr Bytes256 kEven = bytes256([](int i) { return byte_of<kBits>(i, 0) + kByte; });
  static constexpr Bytes256 kOdd = bytes256([](int i) { return byte_of<kBits>(i, 1) + kByte; });
  static constexpr Words256 kEvenUp = words256([](int i) { return shift_of<kBits>(i, 0); });
  static constexpr Words256 kOddUp = words256([](int i) { return shift_of<kBits>(i, 1); });
  const __m256i evens = _mm256_shuffle_epi8(v, load(kEven));
  const __m256i odds = kBits < 7 ? evens : _mm256_shuffle_epi8(v, load(kOdd));
  const __m256i even = _mm256_srli_epi16(_mm256_mullo_epi16(evens, load(kEvenUp)), 16 - kBits);
  const __m256i odd = _mm256_srli_epi16(_mm256_mullo_epi16(odds, load(kOddUp)), 8 - kBits);
  return _mm256_or_si256(even, _mm256_and_si256(odd, _mm256_set1_epi16(((1 << kBits) - 1) << 8)));
}

template <int kBits, Codes::Kind kKind, bool kSigned>
struct D256 : Map256<kBits, kKind, kSigned> {
  using M = Map256<kBits, kKind, kSigned>;
  using Table = typename M::Table;
  static constexpr bool kPacked = kBits == 4;

  static __m256i packed(const std::uint8_t* p, const std::uint8_t* end) {
    if (end == nullptr || end - p >= 32)
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return load_two(p, p + 16, end);
  }
  static __m256i low(__m256i packed, const Table& t) {
    return M::u(_mm256_and_si256(packed, _mm256_set1_epi8(15)), t);
  }
  static __m256i high(__m256i packed, const Table& t) {
    return M::u(_mm256_and_si256(_mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15)), t);
  }

  static void halves(const std::uint8_t* p, const std::uint8_t* end, const Table& t, __m256i& first,
                     __m256i& second) {
    if constexpr (kBits == 4) {
      const __m256i codes = packed(p, end);
      first = low(codes, t);
      second = high(codes, t);
    } else if constexpr (kBits == 8) {
      first = M::u(load_two(p, p + 32, end), t);
      second = M::u(load_two(p + 16, p + 48, end), t);
    } else if constexpr (kBits == 1) {
      static constexpr Bytes256 kFirst = bytes256([](int i) { return i / 16 * 4 + i / 8 % 2; });
      static constexpr Bytes256 kSecond =
          bytes256([](int i) { return i / 16 * 4 + 2 + i / 8 % 2; });
      static constexpr Bytes256 kBit = bytes256([](int i) { return 1 << i % 8; });
      std::int64_t eight = 0;
      const std::int64_t left = end == nullptr ? 8 : end - p;
      if (left >= 8)
        __builtin_memcpy(&eight, p, 8);
      else if (left > 0)  // rows are whole words
        __builtin_memcpy(&eight, p, 4);
      const __m256i v = _mm256_set1_epi64x(eight);
      const auto bits = [&](const Bytes256& index) {
        const __m256i bit = _mm256_and_si256(_mm256_shuffle_epi8(v, load(index)), load(kBit));
        return M::u(_mm256_and_si256(_mm256_cmpeq_epi8(bit, load(kBit)), _mm256_set1_epi8(1)), t);
      };
      first = bits(kFirst);
      second = bits(kSecond);
    } else if constexpr (kBits < 4) {
      const __m256i v = load_two(p, p + 4 * kBits, end);
      first = M::u(cut<kBits, 0>(v), t);
      second = M::u(cut<kBits, 2 * kBits>(v), t);
    } else {
      first = M::u(cut<kBits, 0>(load_two(p, p + 4 * kBits, end)), t);
      second = M::u(cut<kBits, 0>(load_two(p + 2 * kBits, p + 6 * kBits, end)), t);
    }
  }
};

}  // namespace
}  // namespace ladder::cpu::int8
