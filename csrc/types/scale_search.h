// SPDX-License-Identifier: Apache-2.0
//
// What quantising means, to the bit, whoever does it: cpu/quantize.h and the kernels of
// codegen/cuda/quantize.h follow these rules and give the same codes, scales and zeros.
//
// A block has the scale s, the zero point z and, of the whole tensor, the second scale u (1 where
// the type has none). Every operation is rounded to float32, in this order, and never contracted:
//
//   code(w)  = the code nearest to w / (s * u) + z; to z where s * u is 0
//   value(w) = (decode(code(w)) - z) * s * u
//
// A block with zero points holds 0 and its least weight: z has that weight, or 0 where all are
// positive, at the least value, to the nearest. Types without scales have steps of 1, and of two
// that are as near the lesser z, which leaves more for the greatest weight.
//
// The error of a block is the sum of (double(value) - double(w))^2 in double: weights in row-major
// order of the block, weight i added to sum i % kSumLanes of its segment of kSegmentWeights; the
// sums of a segment are added in halves (sum l takes sum l + 16, then + 8, ... + 1), and segments
// in order. A candidate replaces the best one when its error is less.
#pragma once

#include <array>
#include <cstdint>

#include "types/encoder.h"
#include "types/ttype.h"

namespace ladder {

inline constexpr int kSumLanes = 32;
inline constexpr int kSegmentWeights = 1024;

/// The search tries the scale that covers the block, then fractions of it: the whole range in
/// coarse steps, then around the best of them (0: the covering scale) in fine ones, in this order.
inline constexpr int kCoarseSteps = 16;
inline constexpr int kFineSteps = 8;
inline constexpr float kCoarse = 0.05f, kFine = kCoarse / 5;

/// Fraction of coarse step 0 (1.0) to kCoarseSteps.
constexpr float coarse_fraction(int step) { return 1.0f - kCoarse * static_cast<float>(step); }
/// Fraction of fine step 0 to kFineSteps - 1 around `middle`: below, above, below...
constexpr float fine_fraction(float middle, int step) {
  const float distance = kFine * static_cast<float>(step / 2 + 1);
  return step % 2 == 0 ? middle - distance : middle + distance;
}

/// Rounds scales to their format.
struct ScaleRounding {
  enum class Kind {
    none,      ///< no scales: 1
    exact,     ///< float32
    exponent,  ///< up to the next power of two, or half of all blocks would clip their largest
    whole,     ///< integers: to the nearest, ties to even, at least 1
    floating,  ///< to the nearest, by `floating`
    any,       ///< to the nearest, of formats beyond the normal numbers of float32
  };
  Kind kind;
  FloatRounding floating{};

  explicit ScaleRounding(const Element* format);
  /// The value stored for `scale` >= 0, or for a zero point of any sign.
  float operator()(float scale) const;
  /// The bits stored for a value that operator() gave.
  std::uint32_t code(float stored) const;

 private:
  const Element* format_;
};

/// The zero point of a type that stores none.
constexpr float fixed_zero(const TType& type) {
  return type.zero == Zero::midpoint ? static_cast<float>(1 << (type.element->bits - 1)) : 0.0f;
}

/// Whether `type` stores a zero point of each block.
constexpr bool is_asymmetric(Zero zero) { return zero != Zero::none && zero != Zero::midpoint; }

/// The scale below which a candidate is tried as well: a format that reaches 2^60 wants a scale
/// below what its own format can hold; the smallest normal scale then puts the weights inside the
/// range, at no loss for a floating element. 0: none is tried.
float smallest_scale(const TType& type);

/// What a tensor's largest magnitude is divided by for its second scale. NVFP4's rule: the largest
/// block scale is then the largest number that its format can hold. Formats that go further stop at
/// 2^15, below which they lose nothing, and beyond which the product with a code may overflow.
double second_scale_reach(const TType& type);

/// The scale of a whole tensor whose largest magnitude is `largest`.
float second_scale(const TType& type, float largest);

}  // namespace ladder
