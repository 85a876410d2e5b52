// SPDX-License-Identifier: Apache-2.0
//
// Decoding 16 neighbouring columns to 16 float32 in their natural order. A decoder D has
//   kLoads, kBytes                       bytes that a step may read, and those to the next
//   Table, Table table(const Job&)
//   Weights values(p, table)             the 16 values whose codes start at p
// and, where kZeros, Table less(const Job&, zero): whole zeros are subtracted from codes, before
// any product, and, where kFolds, Table folded(Table, scale, zero, offset): all go into the table.
#pragma once

#include <arm_neon.h>

#include "cpu/kernels.h"
#include "cpu/neon/codes.h"

namespace ladder::cpu::neon {
namespace {

struct Weights {
  float32x4_t v[4];
};

/// Upper halves of 16 float32, byte by byte, whose lower halves are zeros.
inline Weights widened(uint8x16_t low, uint8x16_t high) {
  const uint16x8_t zeros = vdupq_n_u16(0);
  const uint16x8_t first = vreinterpretq_u16_u8(vzip1q_u8(low, high));
  const uint16x8_t second = vreinterpretq_u16_u8(vzip2q_u8(low, high));
  return {{vreinterpretq_f32_u16(vzip1q_u16(zeros, first)),
           vreinterpretq_f32_u16(vzip2q_u16(zeros, first)),
           vreinterpretq_f32_u16(vzip1q_u16(zeros, second)),
           vreinterpretq_f32_u16(vzip2q_u16(zeros, second))}};
}

/// One byte of each value of at most 128 codes, in registers as `tbl` takes them.
template <int kRows>
struct Plane {
  uint8x16x4_t rows[2];

  static Plane load(const std::uint8_t* from) {
    const auto four = [](const std::uint8_t* at) -> uint8x16x4_t {
      return {{vld1q_u8(at), vld1q_u8(at + 16), vld1q_u8(at + 32), vld1q_u8(at + 48)}};
    };
    return {{four(from), four(from + 64)}};
  }
  uint8x16_t operator()(uint8x16_t codes) const {
    const uint8x16x4_t low = rows[0];
    if constexpr (kRows == 1) return vqtbl1q_u8(low.val[0], codes);
    if constexpr (kRows == 2) return vqtbl2q_u8({{low.val[0], low.val[1]}}, codes);
    if constexpr (kRows == 4) return vqtbl4q_u8(low, codes);
    // An index out of range looks up 0 there, and leaves what was there here.
    if constexpr (kRows == 8)
      return vqtbx4q_u8(vqtbl4q_u8(low, codes), rows[1], vsubq_u8(codes, vdupq_n_u8(64)));
  }
};

template <int kBits>
inline constexpr int kPlaneRows = kBits <= 4 ? 1 : 1 << (kBits - 4);

/// 1 to 7 bits whose values are bfloat16 numbers: two bytes of each are looked up.
template <int kBits>
struct Halves {
  static constexpr bool kZeros = false, kFolds = false;
  static constexpr int kLoads = kLoad<kBits>, kBytes = 2 * kBits;
  struct Table {
    Plane<kPlaneRows<kBits>> low, high;
  };
  static Table table(const Job& job) {
    using P = decltype(Table::low);
    return {P::load(job.tables->planes[2]), P::load(job.tables->planes[3])};
  }
  static Weights values(const std::uint8_t* p, const Table& t) {
    const uint8x16_t codes = codes_of<kBits>(p);
    return widened(t.low(codes), t.high(codes));
  }
};

/// 8 bits, Tables::mirrored and bfloat16 values: those of half the codes, and their sign bits.
struct Mirrored {
  static constexpr bool kZeros = false, kFolds = false;
  static constexpr int kLoads = 16, kBytes = 16;
  using Table = Halves<7>::Table;
  static Table table(const Job& job) { return Halves<7>::table(job); }
  static Weights values(const std::uint8_t* p, const Table& t) {
    const uint8x16_t codes = vld1q_u8(p), sign = vdupq_n_u8(0x80);
    const uint8x16_t magnitude = vbicq_u8(codes, sign);
    return widened(t.low(magnitude), vorrq_u8(t.high(magnitude), vandq_u8(codes, sign)));
  }
};

/// 1 to 4 bits of any values, which take in scales and zeros once per group.
template <int kBits>
struct Folded {
  static constexpr bool kZeros = false, kFolds = true;
  static constexpr int kLoads = kLoad<kBits>, kBytes = 2 * kBits;
  struct Table {
    uint8x16_t planes[4];
    const float* values;
  };
  static Table table(const Job& job) {
    Table t;
    for (int i = 0; i < 4; ++i) t.planes[i] = vld1q_u8(job.tables->planes[i]);
    t.values = job.tables->values;
    return t;
  }
  static Table folded(const Table& t, float scale, float zero, float offset) {
    uint16x8_t halves[4];  // lower, upper of values 0 to 7, of 8 to 15
    for (int i = 0; i < 4; i += 2) {
      uint16x8_t bits[2];
      for (int j = 0; j < 2; ++j) {
        const float32x4_t value = vsubq_f32(vld1q_f32(t.values + 4 * (i + j)), vdupq_n_f32(zero));
        // One rounding for scale * value - offset: see the generic kernel.
        bits[j] = vreinterpretq_u16_f32(vfmaq_n_f32(vdupq_n_f32(-offset), value, scale));
      }
      halves[i] = vuzp1q_u16(bits[0], bits[1]);
      halves[i + 1] = vuzp2q_u16(bits[0], bits[1]);
    }
    Table to;
    for (int i = 0; i < 2; ++i) {
      const uint8x16_t first = vreinterpretq_u8_u16(halves[i]);
      const uint8x16_t second = vreinterpretq_u8_u16(halves[i + 2]);
      to.planes[2 * i] = vuzp1q_u8(first, second);
      to.planes[2 * i + 1] = vuzp2q_u8(first, second);
    }
    to.values = t.values;
    return to;
  }
  static Weights values(const std::uint8_t* p, const Table& t) {
    const uint8x16_t codes = codes_of<kBits>(p);
    uint8x16_t bytes[4];
    for (int i = 0; i < 4; ++i) bytes[i] = vqtbl1q_u8(t.planes[i], codes);
    Weights w;
    const auto pair = [&](int at, uint8x16_t lower, uint8x16_t upper) {
      const uint16x8_t l = vreinterpretq_u16_u8(lower), u = vreinterpretq_u16_u8(upper);
      w.v[at] = vreinterpretq_f32_u16(vzip1q_u16(l, u));
      w.v[at + 1] = vreinterpretq_f32_u16(vzip2q_u16(l, u));
    };
    pair(0, vzip1q_u8(bytes[0], bytes[1]), vzip1q_u8(bytes[2], bytes[3]));
    pair(2, vzip2q_u8(bytes[0], bytes[1]), vzip2q_u8(bytes[2], bytes[3]));
    return w;
  }
};

/// Tables::linear whose values fit 8 bits with a sign: such a byte at the top of a lane is
/// converted as a number with a fraction of 24 bits.
template <int kBits>
struct Integer8 {
  static constexpr bool kZeros = false, kFolds = false;
  static constexpr int kLoads = kLoad<kBits>, kBytes = 2 * kBits;
  struct Table {
    uint8x16_t flip, first;
  };
  static Table table(const Job& job) {
    return {vdupq_n_u8(static_cast<std::uint8_t>(job.tables->flip)),
            vdupq_n_u8(static_cast<std::uint8_t>(static_cast<int>(job.tables->first)))};
  }
  static Weights values(const std::uint8_t* p, const Table& t) {
    const uint8x16_t bytes = vaddq_u8(veorq_u8(codes_of<kBits>(p), t.flip), t.first);
    // Codes 0, 1, 2 and 3 go to the tops of the four lanes; other indices are out of range, hence
    // 0.
    const uint32x4_t top = {0x00ffffffu, 0x01ffffffu, 0x02ffffffu, 0x03ffffffu};
    Weights w;
    for (unsigned i = 0; i < 4; ++i) {
      const uint8x16_t index = vreinterpretq_u8_u32(vaddq_u32(top, vdupq_n_u32(i << 26)));
      w.v[i] = vcvtq_n_f32_s32(vreinterpretq_s32_u8(vqtbl1q_u8(bytes, index)), 24);
    }
    return w;
  }
};

/// Tables::linear less any zero of 8 bits.
template <int kBits>
struct Integer16 {
  static constexpr bool kZeros = true, kFolds = false;
  static constexpr int kLoads = kLoad<kBits>, kBytes = 2 * kBits;
  struct Table {
    uint8x16_t flip;
    uint16x8_t first;
  };
  static Table table(const Job& job) { return less(job, 0); }
  static Table less(const Job& job, float zero) {
    const int first = static_cast<int>(job.tables->first - zero);
    return {vdupq_n_u8(static_cast<std::uint8_t>(job.tables->flip)),
            vdupq_n_u16(static_cast<std::uint16_t>(first))};
  }
  static Weights values(const std::uint8_t* p, const Table& t) {
    const uint8x16_t codes = veorq_u8(codes_of<kBits>(p), t.flip);
    const uint16x8_t eight[2] = {vaddw_u8(t.first, vget_low_u8(codes)),
                                 vaddw_high_u8(t.first, codes)};
    const uint16x8_t zeros = vdupq_n_u16(0);
    Weights w;
    for (int i = 0; i < 2; ++i) {
      w.v[2 * i] = vcvtq_n_f32_s32(vreinterpretq_s32_u16(vzip1q_u16(zeros, eight[i])), 16);
      w.v[2 * i + 1] = vcvtq_n_f32_s32(vreinterpretq_s32_u16(vzip2q_u16(zeros, eight[i])), 16);
    }
    return w;
  }
};

/// 5 to 8 bits of any values: 16 loads from the table.
template <int kBits>
struct Gathered {
  static constexpr bool kZeros = false, kFolds = false;
  static constexpr int kLoads = kLoad<kBits>, kBytes = 2 * kBits;
  struct Table {
    const float* values;
  };
  static Table table(const Job& job) { return {job.tables->values}; }
  static Weights values(const std::uint8_t* p, const Table& t) {
    std::uint8_t codes[16];
    vst1q_u8(codes, codes_of<kBits>(p));
    Weights w;
    for (int i = 0; i < 4; ++i) {
      const auto at = [&](int j) { return t.values[codes[4 * i + j]]; };
      w.v[i] = float32x4_t{at(0), at(1), at(2), at(3)};
    }
    return w;
  }
};

/// float16, bfloat16 and float32 weights.
template <Storage kStorage>
struct Plain {
  static constexpr bool kZeros = false, kFolds = false;
  static constexpr int kBytes = kStorage == Storage::float32 ? 64 : 32, kLoads = kBytes;
  struct Table {};
  static Table table(const Job&) { return {}; }
  static Weights values(const std::uint8_t* p, const Table&) {
    Weights w;
    if constexpr (kStorage == Storage::float32) {
      for (int i = 0; i < 4; ++i) w.v[i] = vreinterpretq_f32_u8(vld1q_u8(p + 16 * i));
    } else {
      for (int i = 0; i < 2; ++i) {
        const uint8x16_t eight = vld1q_u8(p + 16 * i);
        if constexpr (kStorage == Storage::float16) {
          w.v[2 * i] = vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_u8(eight)));
          w.v[2 * i + 1] = vcvt_high_f32_f16(vreinterpretq_f16_u8(eight));
        } else {
          const uint16x8_t zeros = vdupq_n_u16(0), halves = vreinterpretq_u16_u8(eight);
          w.v[2 * i] = vreinterpretq_f32_u16(vzip1q_u16(zeros, halves));
          w.v[2 * i + 1] = vreinterpretq_f32_u16(vzip2q_u16(zeros, halves));
        }
      }
    }
    return w;
  }
};

}  // namespace
}  // namespace ladder::cpu::neon
