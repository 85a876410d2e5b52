// SPDX-License-Identifier: Apache-2.0
#include "types/scale_search.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace ladder {
namespace {

constexpr std::uint32_t kSign = 0x80000000u;
constexpr float kLeastPower = 0x1p-127f, kLargestPower = 0x1p127f;  // of e8m0

ScaleRounding::Kind kind_of(const Element* format) {
  if (format == nullptr) return ScaleRounding::Kind::none;
  if (format->encoding == Encoding::exponent) return ScaleRounding::Kind::exponent;
  if (format->encoding == Encoding::unsigned_integer) return ScaleRounding::Kind::whole;
  if (format->bits == 32) return ScaleRounding::Kind::exact;
  return float_rounding(*format) ? ScaleRounding::Kind::floating : ScaleRounding::Kind::any;
}

float rounded_normal(const FloatRounding& to, float magnitude) {
  const auto b = std::bit_cast<std::uint32_t>(magnitude);
  return std::bit_cast<float>((b + to.half + ((b >> to.shift ^ to.flip) & 1)) & ~to.mask);
}

}  // namespace

ScaleRounding::ScaleRounding(const Element* format) : kind(kind_of(format)), format_(format) {
  if (kind == Kind::exponent) {
    LADDER_CHECK(max_value(*format) == kLargestPower && min_value(*format) == kLeastPower,
                 "scales of ", format->name, " are not those of e8m0");
  }
  if (kind == Kind::floating) floating = *float_rounding(*format);
}

float ScaleRounding::operator()(float scale) const {
  switch (kind) {
    case Kind::none: return 1.0f;
    case Kind::exact: return scale;
    case Kind::any: return static_cast<float>(decode(*format_, encode(*format_, scale)));
    case Kind::exponent:
      if (!(scale > kLeastPower)) return kLeastPower;
      if (scale >= kLargestPower) return kLargestPower;
      return std::bit_cast<float>((std::bit_cast<std::uint32_t>(scale) + 0x7fffffu) & 0xff800000u);
    case Kind::whole:
      return std::clamp(std::nearbyint(scale), 1.0f, static_cast<float>(max_value(*format_)));
    case Kind::floating: break;
  }
  float magnitude = std::fabs(scale);
  magnitude = magnitude < floating.largest ? magnitude : floating.largest;
  const float stored = magnitude < floating.smallest_normal
                           ? (magnitude + floating.subnormal) - floating.subnormal
                           : rounded_normal(floating, magnitude);
  return std::copysign(stored, scale);
}

std::uint32_t ScaleRounding::code(float stored) const {
  const auto bits = std::bit_cast<std::uint32_t>(stored);
  switch (kind) {
    case Kind::none:
    case Kind::exact: return bits;
    case Kind::any: return encode(*format_, stored);
    case Kind::exponent: return bits >> 23;
    case Kind::whole: return static_cast<std::uint32_t>(stored);
    case Kind::floating: break;
  }
  const float magnitude = std::fabs(stored);
  const std::uint32_t sign = bits >> 31 << (format_->bits - 1);
  if (magnitude < floating.smallest_normal)
    return sign | (std::bit_cast<std::uint32_t>(magnitude + floating.subnormal) -
                   std::bit_cast<std::uint32_t>(floating.subnormal));
  return sign | (((bits & ~kSign) >> floating.shift) - floating.rebias);
}

float smallest_scale(const TType& type) {
  if (type.scale == nullptr || type.scale->bits != 16) return 0;
  if (type.element->encoding != Encoding::floating) return 0;
  return std::ldexp(1.0f, 1 - type.scale->bias);
}

double second_scale_reach(const TType& type) {
  const Encoder encoder(*type.element);
  const double low = encoder.value(encoder.codes().front());
  const double high = encoder.value(encoder.codes().back());
  const double zero = fixed_zero(type), up = high - zero, down = zero - low;
  // Of weights up to 1 the largest block scale divides 1 by so much: a block may lie on the side
  // where the format has less, and from -1 to 1.
  const double covered = is_asymmetric(type.zero) ? (high - low) / 2
                         : up <= 0                ? down
                         : down <= 0              ? up
                                                  : std::min(up, down);
  constexpr double kMost = 0x1p15, kLargestValue = 0x1p126;
  const double most = std::max(std::abs(low), std::abs(high));
  // Zero points of Zero::rescale are multiples of the scale, in its format.
  const double top = max_value(*type.scale) / (type.zero == Zero::rescale ? most : 1);
  return covered * std::min({top, kMost, kLargestValue / std::max(up, down)});
}

float second_scale(const TType& type, float largest) {
  return largest == 0 ? 1.0f : static_cast<float>(largest / second_scale_reach(type));
}

}  // namespace ladder
