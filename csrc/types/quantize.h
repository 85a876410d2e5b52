// SPDX-License-Identifier: Apache-2.0
//
// Numbers to codes: the nearest code fast, and the scale and zero point of each block.
#pragma once

#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "types/ttype.h"

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

 private:
  std::uint8_t search(float value) const;

  const Element* element_;
  std::vector<float> values_;  ///< by code
  bool integer_;               ///< codes are rounded values: arithmetic instead of a search
  float low_ = 0, high_ = 0;
  int mask_ = 0;
  std::vector<float> below_;         ///< ascending, 256 at most, padded to whole rows with infinity
  std::vector<float> row_begins_;    ///< the first of each row of 16, padded likewise
  std::vector<std::uint8_t> codes_;  ///< codes_[i]: for values greater than exactly i of below_
};

enum class Rounding {
  nearest,  ///< scale from the largest magnitude of the block
  search,   ///< of 24 scales from there down to a fifth, the one with the least squared error
};

/// Memory for the parts of a quantised [n, k] weight; shapes as in WeightView. Parts that `type`
/// does not have are not touched.
struct QuantizedParts {
  std::uint32_t* codes;
  void* scales;
  void* zeros;
  float* scale2;
};

/// Quantises `weight` [n, k] row-major to `type`. The stored (rounded) scale is the one that codes
/// are chosen for. Rows of blocks are divided over threads; the result does not depend on them.
/// Throws InvalidArgument for a weight that is not finite (naming row and column), for an element
/// of more than 8 bits, and for a type without scales unless its element has a value near each
/// weight by construction (floats).
void quantize(const float* weight, std::int64_t n, std::int64_t k, const TType& type,
              Rounding rounding, const QuantizedParts& parts, const Parallel& parallel);

}  // namespace ladder
