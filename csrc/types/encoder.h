// SPDX-License-Identifier: Apache-2.0
//
// Numbers to codes of at most 8 bits: the nearest code, fast, and what kernels need to find it
// with instructions of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "types/element.h"

namespace ladder {

/// encode(element, ., saturate) for many values: the same code for every float32, some 20 times
/// faster. Formats of at most 8 bits.
class Encoder {
 public:
  explicit Encoder(const Element& element);
  /// Code of the nearest value. NaN becomes the NaN code, or that of the lowest value where
  /// there is none.
  std::uint8_t operator()(float value) const {
    if (!integer_) return search(value);
    const float clamped = value > low_ ? (value < high_ ? value : high_) : low_;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even.
    const float rounded = (clamped + 12582912.0f) - 12582912.0f;
    return static_cast<std::uint8_t>(static_cast<int>(rounded) & mask_);
  }
  /// The number that code stands for.
  float value(std::uint8_t code) const { return values_[code]; }

  /// The codes that come out, by value: one for each finite value, 256 at most.
  std::span<const std::uint8_t> codes() const { return codes_; }
  /// One fewer: a number greater than exactly i of these becomes codes()[i]. Ascending.
  std::span<const float> below() const { return {below_.data(), codes_.size() - 1}; }

 private:
  std::uint8_t search(float value) const;

  const Element* element_;
  std::vector<float> values_;  ///< by code
  bool integer_;               ///< codes are rounded values: arithmetic instead of a search
  float low_ = 0, high_ = 0;
  int mask_ = 0;
  std::vector<float> below_;         ///< ascending, padded to whole rows of 16 with infinity
  std::vector<float> row_begins_;    ///< the first of each row of 16, padded likewise
  std::vector<std::uint8_t> codes_;  ///< codes_[i]: for values greater than exactly i of below_
};

/// How operations on float32 alone round a number to a floating format of at most 16 bits, as
/// encode(., saturate) and decode do. Of the magnitude m, at most `largest`, with the bits b:
///   m < smallest_normal: m + subnormal - subnormal, of code b(m + subnormal) - b(subnormal);
///   otherwise: bits (b + half + ((b >> shift ^ flip) & 1)) & ~mask, of code (bits >> shift) -
///   rebias.
struct FloatRounding {
  float largest, smallest_normal;
  float subnormal;     ///< its unit in the last place is the format's smallest number
  int shift;           ///< bits of a float32 behind the mantissa of the format
  std::uint32_t half;  ///< of a unit of the format's last place, less one unit of float32's
  std::uint32_t mask;  ///< the bits that are dropped
  std::uint32_t flip;  ///< 1: without a mantissa, and even codes have odd exponents in float32
  std::uint32_t rebias;

  bool operator==(const FloatRounding&) const = default;
};
/// Nothing where the format is not a floating one or float32 has not its range.
std::optional<FloatRounding> float_rounding(const Element& element);

}  // namespace ladder
