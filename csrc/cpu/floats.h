// SPDX-License-Identifier: Apache-2.0
//
// float16 and bfloat16 in plain C++. Not for files compiled for one instruction set (kernels.h).
#pragma once

#include <bit>
#include <cstdint>

namespace ladder::cpu {

inline float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_float16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00)  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
  if (magnitude < 0x400)  // subnormal: a count of 2^-24
    return std::bit_cast<float>(
        sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

inline std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)  // NaN
    return static_cast<std::uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // rounds past 65504
  if (magnitude < 0x38800000u)  // below 2^-14: adding 0.5 leaves the count of 2^-24, rounded
    return static_cast<std::uint16_t>(
        sign |
        (std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u));
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | (rounded - (112u << 23)) >> 13);
}

}  // namespace ladder::cpu
