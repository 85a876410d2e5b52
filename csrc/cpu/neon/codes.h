// SPDX-License-Identifier: Apache-2.0
//
// 16 neighbouring columns are 2 * bits whole bytes; here their codes go into 16 bytes, in the
// natural order. That is at most six instructions, and in return x needs no order of its own and a
// group is any multiple of 16 columns.
#pragma once

#include <arm_neon.h>

#include <array>
#include <cstdint>

namespace ladder::cpu::neon {
namespace {

constexpr int kColumns = 16;  ///< of one step

/// Bytes that codes_of<kBits> reads, of which it uses 2 * kBits.
template <int kBits>
inline constexpr int kLoad = kBits <= 2 || kBits == 4 ? 2 * kBits
                             : kBits == 3             ? 8
                                                      : 16;

/// Shift of each code and the byte where its bits begin, for eight codes of u16 or 16 of bytes.
struct Places {
  alignas(16) std::array<std::uint8_t, 16> from[2];
  alignas(16) std::array<std::int8_t, 16> byte_shift;
  alignas(16) std::array<std::int16_t, 8> shift;
};

template <int kBits>
constexpr Places places() {
  Places p{};
  for (int i = 0; i < 16; ++i) {
    const int bit = i * kBits;
    p.byte_shift[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(-(bit % 8));
    if (kBits <= 2) {
      p.from[0][static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(bit / 8);
    } else {  // a lane of u16 takes the byte where the code begins and the next
      const auto at = static_cast<std::size_t>(i % 8 * 2);
      p.from[i / 8][at] = static_cast<std::uint8_t>(bit / 8);
      p.from[i / 8][at + 1] = static_cast<std::uint8_t>(bit / 8 + 1);
      p.shift[static_cast<std::size_t>(i % 8)] = static_cast<std::int16_t>(-(bit % 8));
    }
  }
  return p;
}

template <int kBits>
inline constexpr Places kPlaces = places<kBits>();

/// The 16 codes that begin at p, one in each byte.
template <int kBits>
inline uint8x16_t codes_of(const std::uint8_t* p) {
  constexpr const Places& at = kPlaces<kBits>;
  if constexpr (kBits == 8) {
    return vld1q_u8(p);
  } else if constexpr (kBits == 4) {
    std::uint64_t word;
    __builtin_memcpy(&word, p, 8);
    const uint8x16_t pairs = vreinterpretq_u8_u64(vdupq_n_u64(word));
    return vzip1q_u8(vandq_u8(pairs, vdupq_n_u8(15)), vshrq_n_u8(pairs, 4));
  } else if constexpr (kBits <= 2) {
    uint8x16_t bytes;
    if constexpr (kBits == 2) {
      std::uint32_t word;
      __builtin_memcpy(&word, p, 4);
      bytes = vreinterpretq_u8_u32(vdupq_n_u32(word));
    } else {
      std::uint16_t half;
      __builtin_memcpy(&half, p, 2);
      bytes = vreinterpretq_u8_u16(vdupq_n_u16(half));
    }
    const uint8x16_t spread = vqtbl1q_u8(bytes, vld1q_u8(at.from[0].data()));
    return vandq_u8(vshlq_u8(spread, vld1q_s8(at.byte_shift.data())), vdupq_n_u8((1 << kBits) - 1));
  } else {
    uint8x16_t bytes;
    if constexpr (kBits == 3)
      bytes = vcombine_u8(vld1_u8(p), vdup_n_u8(0));
    else
      bytes = vld1q_u8(p);
    const int16x8_t shift = vld1q_s16(at.shift.data());
    const auto eight = [&](int half) {
      const uint8x16_t spread = vqtbl1q_u8(bytes, vld1q_u8(at.from[half].data()));
      return vreinterpretq_u8_u16(vshlq_u16(vreinterpretq_u16_u8(spread), shift));
    };
    return vandq_u8(vuzp1q_u8(eight(0), eight(1)), vdupq_n_u8((1 << kBits) - 1));
  }
}

}  // namespace
}  // namespace ladder::cpu::neon
