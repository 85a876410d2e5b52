// SPDX-License-Identifier: Apache-2.0
#include "types/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "types/weight.h"

namespace ladder {
namespace {

// The search tries the whole range in coarse steps, then around the best of them in fine ones.
constexpr int kCoarseSteps = 16;
constexpr int kFineSteps = 4;  // on each side
constexpr float kCoarse = 0.05f, kFine = kCoarse / (kFineSteps + 1);

/// Rounds a scale to its format, upwards where it must cover the largest weight and the format is
/// a power of two; writes its code to `data[index]` and returns the value stored.
float store_scale(const Element& format, float scale, void* data, std::int64_t index) {
  auto* bytes = static_cast<unsigned char*>(data);
  if (format.bits == 32) {
    std::memcpy(bytes + index * 4, &scale, 4);
    return scale;
  }
  const std::uint32_t code = encode(format, scale);
  if (format.bits == 16) {
    const auto half = static_cast<std::uint16_t>(code);
    std::memcpy(bytes + index * 2, &half, 2);
  } else {
    bytes[index] = static_cast<unsigned char>(code);
  }
  return static_cast<float>(decode(format, code));
}

float round_scale(const Element* format, float scale) {
  if (format == nullptr) return 1.0f;
  if (format->bits == 32) return scale;
  return static_cast<float>(decode(*format, encode(*format, scale)));
}

struct Choice {
  float scale = 1;
  float zero = 0;    ///< subtracted from the code's value before scaling
  double error = 0;  ///< sum of squares
};

/// The weights of one block, gathered from `rows` rows.
class BlockQuantizer {
 public:
  BlockQuantizer(const TType& type, Rounding rounding)
      : type_(type), rounding_(rounding), encoder_(*type.element) {
    low_ = static_cast<float>(min_value(*type.element));
    high_ = static_cast<float>(max_value(*type.element));
    if (type.zero == Zero::midpoint) zero_ = static_cast<float>(1 << (type.element->bits - 1));
  }

  const Encoder& encoder() const { return encoder_; }

  /// `unit` is the second-level scale that the block's scale is relative to.
  Choice choose(const std::vector<float>& weights, float unit) const {
    if (type_.scale == nullptr) return {.scale = 1, .zero = zero_, .error = 0};
    const auto [least, most] = std::ranges::minmax(weights);
    Choice best = at_shrink(weights, least, most, 1.0f, unit);
    // A format that reaches 2^60 wants a scale below what its own format can hold: the smallest
    // normal scale then puts the weights inside the range, at no loss for a floating element.
    if (type_.element->encoding == Encoding::floating && type_.scale->bits == 16) {
      const float smallest = std::ldexp(1.0f, 1 - type_.scale->bias);
      const Choice tried = at_scale(weights, {.scale = smallest, .zero = zero_}, unit);
      if (tried.error < best.error) best = tried;
    }
    if (rounding_ == Rounding::nearest) return best;
    float middle = 1.0f;
    const auto attempt = [&, least = least, most = most](float shrink) {
      const Choice tried = at_shrink(weights, least, most, shrink, unit);
      if (tried.error >= best.error) return false;
      best = tried;
      return true;
    };
    for (int step = 1; step <= kCoarseSteps; ++step)
      if (attempt(1.0f - kCoarse * static_cast<float>(step)))
        middle = 1.0f - kCoarse * static_cast<float>(step);
    for (int step = 1; step <= kFineSteps; ++step) {
      attempt(middle - kFine * static_cast<float>(step));
      attempt(middle + kFine * static_cast<float>(step));
    }
    return best;
  }

  /// Code for one weight under `choice`.
  std::uint8_t code(float weight, const Choice& choice, float unit) const {
    const float scale = choice.scale * unit;
    return scale == 0 ? encoder_(choice.zero) : encoder_(weight / scale + choice.zero);
  }

 private:
  bool asymmetric() const {
    return type_.zero == Zero::integer || type_.zero == Zero::quantized ||
           type_.zero == Zero::original || type_.zero == Zero::rescale;
  }

  Choice at_shrink(const std::vector<float>& weights, float least, float most, float shrink,
                   float unit) const {
    Choice choice{.scale = 1, .zero = zero_, .error = 0};
    if (asymmetric()) {
      // The range must hold 0, so that a zero weight stays zero.
      const float low = std::min(least, 0.0f) * shrink, high = std::max(most, 0.0f) * shrink;
      choice.scale = stored((high - low) / (high_ - low_), unit);
      const float zero = choice.scale == 0 ? 0 : low_ - low / (choice.scale * unit);
      choice.zero = std::clamp(std::nearbyint(zero), low_, high_);
    } else {
      // The largest multiple of the scale on each side; one-sided formats cover what they can.
      const float up = high_ - zero_, down = zero_ - low_;
      float scale = 0;
      if (up > 0) scale = std::max(scale, most / up);
      if (down > 0) scale = std::max(scale, -least / down);
      choice.scale = stored(scale * shrink, unit);
    }
    return at_scale(weights, choice, unit);
  }

  /// `choice` with the error it makes.
  Choice at_scale(const std::vector<float>& weights, Choice choice, float unit) const {
    for (const float weight : weights) {
      const float back =
          (encoder_.value(code(weight, choice, unit)) - choice.zero) * choice.scale * unit;
      const double error = double{back} - double{weight};
      choice.error += error * error;
    }
    return choice;
  }

  /// A power-of-two scale is rounded up, or half of all blocks would clip their largest weight.
  float stored(float scale, float unit) const {
    const float relative = unit == 0 ? 0 : scale / unit;
    if (type_.scale->encoding == Encoding::exponent && relative > 0) {
      int power = 0;
      const float fraction = std::frexp(relative, &power);  // in [0.5, 1)
      return round_scale(type_.scale, std::ldexp(1.0f, fraction == 0.5f ? power - 1 : power));
    }
    return round_scale(type_.scale, relative);
  }

  const TType& type_;
  Rounding rounding_;
  Encoder encoder_;
  float low_, high_, zero_ = 0;
};

void require_finite(const float* weight, std::int64_t n, std::int64_t k) {
  for (std::int64_t i = 0; i < n * k; ++i)
    LADDER_REQUIRE(std::isfinite(weight[i]), "weight at row ", i / k, ", column ", i % k, " is ",
                   weight[i], ", not a finite number");
}

/// NVFP4's rule: the largest block scale is the largest value that its format can hold.
float second_scale(const float* weight, std::int64_t count, const TType& type) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(weight[i]));
  const double reach = max_value(*type.element) * max_value(*type.scale);
  return largest == 0 ? 1.0f : static_cast<float>(largest / reach);
}

void store_zero(const TType& type, float zero, float scale, std::int64_t block_row,
                std::int64_t group, std::int64_t groups, void* zeros,
                std::vector<std::uint8_t>& row_zeros) {
  const std::int64_t index = block_row * groups + group;
  switch (type.zero) {
    case Zero::none:
    case Zero::midpoint: break;
    case Zero::integer:
      static_cast<std::uint8_t*>(zeros)[index] = static_cast<std::uint8_t>(zero);
      break;
    case Zero::quantized:
      row_zeros[static_cast<std::size_t>(group)] = static_cast<std::uint8_t>(zero);
      break;
    case Zero::original: store_scale(*type.scale, zero, zeros, index); break;
    case Zero::rescale: store_scale(*type.scale, zero * scale, zeros, index); break;
  }
}

}  // namespace

void quantize(const float* weight, std::int64_t n, std::int64_t k, const TType& type,
              Rounding rounding, const QuantizedParts& parts, const Parallel& parallel) {
  const BlockQuantizer quantizer(type, rounding);
  require_finite(weight, n, k);
  const float unit = type.scale2 != nullptr ? second_scale(weight, n * k, type) : 1.0f;
  if (type.scale2 != nullptr) *parts.scale2 = unit;
  const std::int64_t groups = type.groups(k), bits = type.element->bits;
  const std::int64_t rows = type.block.rows == 0 ? n : type.block.rows;
  const std::int64_t columns = type.block.columns == 0 ? k : type.block.columns;
  parallel(type.block_rows(n), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(std::min(rows, n) * k));
    std::vector<std::uint8_t> row_zeros(static_cast<std::size_t>(groups));
    std::vector<float> block;
    for (std::int64_t block_row = begin; block_row < end; ++block_row) {
      const std::int64_t first = block_row * rows, last = std::min(first + rows, n);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t left = group * columns, right = std::min(left + columns, k);
        block.clear();
        for (std::int64_t row = first; row < last; ++row)
          block.insert(block.end(), weight + row * k + left, weight + row * k + right);
        const Choice choice = quantizer.choose(block, unit);
        if (type.scale != nullptr)
          store_scale(*type.scale, choice.scale, parts.scales, block_row * groups + group);
        store_zero(type, choice.zero, choice.scale, block_row, group, groups, parts.zeros,
                   row_zeros);
        auto from = block.begin();
        for (std::int64_t row = first; row < last; ++row)
          for (std::int64_t column = left; column < right; ++column)
            codes[static_cast<std::size_t>((row - first) * k + column)] =
                quantizer.code(*from++, choice, unit);
      }
      pack_codes(codes.data(), last - first, k, static_cast<int>(bits),
                 parts.codes + first * row_words(k, static_cast<int>(bits)));
      if (type.zero == Zero::quantized)
        pack_codes(row_zeros.data(), 1, groups, static_cast<int>(bits),
                   static_cast<std::uint32_t*>(parts.zeros) +
                       block_row * row_words(groups, static_cast<int>(bits)));
    }
  });
}

}  // namespace ladder
