// SPDX-License-Identifier: Apache-2.0
//
// What quantising should give, the slow way: the rules of types/scale_search.h read aloud, with
// encode() and decode() in double for every rounding to a format. Internal to the tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "types/element.h"
#include "types/ttype.h"

namespace ladder::testing {

struct OracleChoice {
  float scale, zero;
  double error;
};

class QuantizeOracle {
 public:
  /// `unit`: the second scale.
  QuantizeOracle(const TType& type, float unit) : type_(type), unit_(unit) {
    low_ = static_cast<float>(min_value(*type.element));
    high_ = static_cast<float>(max_value(*type.element));
    if (type.zero == Zero::midpoint) zero_ = static_cast<float>(1 << (type.element->bits - 1));
  }

  /// Every choice that the search considers, in order.
  std::vector<OracleChoice> candidates(const std::vector<float>& block) const {
    std::vector<OracleChoice> out{at(block, 1.0f)};
    if (type_.scale->bits == 16 && type_.element->encoding == Encoding::floating)
      out.push_back(measured(block, std::ldexp(1.0f, 1 - type_.scale->bias), zero_));
    const auto best = [&] {
      return std::ranges::min_element(out, {}, &OracleChoice::error) - out.begin();
    };
    float middle = 1.0f;
    for (int step = 1; step <= 16; ++step) {
      const float fraction = 1.0f - 0.05f * static_cast<float>(step);
      out.push_back(at(block, fraction));
      if (best() == static_cast<std::ptrdiff_t>(out.size()) - 1) middle = fraction;
    }
    for (int step = 1; step <= 4; ++step) {
      const float distance = 0.05f / 5 * static_cast<float>(step);
      out.push_back(at(block, middle - distance));
      out.push_back(at(block, middle + distance));
    }
    return out;
  }

  /// The first of the candidates with the least error.
  OracleChoice choose(const std::vector<float>& block) const {
    if (type_.scale == nullptr) return {1, zero_, 0};
    const auto all = candidates(block);
    return *std::ranges::min_element(all, {}, &OracleChoice::error);
  }

  std::uint32_t code(float weight, const OracleChoice& choice) const {
    const float step = choice.scale * unit_;
    return encode(*type_.element, step == 0 ? choice.zero : weight / step + choice.zero);
  }

  float value(std::uint32_t code, const OracleChoice& choice) const {
    const auto decoded = static_cast<float>(decode(*type_.element, code));
    return (decoded - choice.zero) * choice.scale * unit_;
  }

 private:
  float stored(float scale) const {
    float relative = unit_ == 0 ? 0 : scale / unit_;
    if (type_.scale->bits == 32) return relative;
    if (type_.has_integer_scales()) relative = std::max(relative, 1.0f);
    if (type_.scale->encoding == Encoding::exponent && relative > 0)
      relative = static_cast<float>(std::exp2(std::ceil(std::log2(double{relative}))));
    return static_cast<float>(decode(*type_.scale, encode(*type_.scale, relative)));
  }

  OracleChoice at(const std::vector<float>& block, float fraction) const {
    const auto [least, greatest] = std::ranges::minmax(block);
    if (type_.zero == Zero::none || type_.zero == Zero::midpoint) {
      const float up = high_ - zero_, down = zero_ - low_;
      float scale = 0;
      if (up > 0) scale = std::max(scale, greatest / up);
      if (down > 0) scale = std::max(scale, -least / down);
      return measured(block, stored(scale * fraction), zero_);
    }
    const float low = std::min(least, 0.0f) * fraction, high = std::max(greatest, 0.0f) * fraction;
    const float scale = stored((high - low) / (high_ - low_)), step = scale * unit_;
    const float zero = step == 0 ? 0 : std::nearbyint(low_ - low / step);
    return measured(block, scale, std::clamp(zero, low_, high_));
  }

  OracleChoice measured(const std::vector<float>& block, float scale, float zero) const {
    OracleChoice choice{scale, zero, 0};
    for (std::size_t begin = 0; begin < block.size(); begin += 1024) {
      double sums[32] = {};
      for (std::size_t i = begin; i < std::min(block.size(), begin + 1024); ++i) {
        const double error = double{value(code(block[i], choice), choice)} - double{block[i]};
        sums[(i - begin) % 32] += error * error;
      }
      for (int half = 16; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
      choice.error += sums[0];
    }
    return choice;
  }

  const TType& type_;
  float unit_, low_, high_, zero_ = 0;
};

}  // namespace ladder::testing
