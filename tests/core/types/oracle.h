// SPDX-License-Identifier: Apache-2.0
//
// What encode() should give, found the slow way: look at every code, keep the nearest. It shares
// nothing with the encoder but decode(), whose values the tests of the specifications type in.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "types/element.h"

namespace ladder::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Finite values by code; codes without a finite value hold NaN.
inline std::vector<double> finite_values(const Element& element) {
  std::vector<double> values;
  for (int code = 0; code < element.code_count(); ++code) {
    const double value = decode(element, static_cast<std::uint32_t>(code));
    values.push_back(std::isfinite(value) ? value : kNan);
  }
  return values;
}

/// Sign of |a - value| - |b - value|, exact where a + b is.
inline int compare_distance(double a, double b, double value) {
  if (a == b) return 0;
  if (a > b) return -compare_distance(b, a, value);
  if (value <= a) return -1;
  if (value >= b) return 1;
  return 2 * value == a + b ? 0 : 2 * value < a + b ? -1 : 1;
}

/// Of the codes [0, count), the nearest to `value`; a tie goes to the even or to the lower code.
inline std::uint32_t nearest_code(const std::vector<double>& values, std::size_t count,
                                  double value, bool ties_to_even) {
  int best = -1;
  for (std::uint32_t code = 0; code < count; ++code) {
    if (std::isnan(values[code])) continue;
    const int order = best < 0 ? -1 : compare_distance(values[code], values[best], value);
    if (order < 0 || (order == 0 && ties_to_even && code % 2 == 0)) best = static_cast<int>(code);
  }
  return static_cast<std::uint32_t>(best);
}

class Oracle {
 public:
  explicit Oracle(const Element& element) : element_(element), values_(finite_values(element)) {}

  /// Expected code of a `value` that is not NaN.
  std::uint32_t encode(double value, Overflow overflow) const {
    switch (element_.encoding) {
      case Encoding::table: {
        const double clamped = std::clamp(value, smallest(), largest());
        return nearest_code(values_, values_.size(), clamped, false);
      }
      case Encoding::unsigned_integer:
      case Encoding::signed_integer:
        return nearest_code(values_, values_.size(), std::clamp(value, smallest(), largest()),
                            true);
      case Encoding::exponent:
        if (value > largest() * 1.5) return overflowed(false, overflow);
        return nearest_code(values_, values_.size(), std::max(value, 0.0), true);
      case Encoding::floating: return floating(value, overflow);
    }
    return 0;
  }

  /// Values at and around everything where rounding changes its mind, and many others.
  std::vector<double> probes(int random_count) const {
    std::vector<double> sorted;
    for (const double value : values_)
      if (!std::isnan(value)) sorted.push_back(value);
    std::ranges::sort(sorted);
    std::vector<double> centres = sorted;
    for (std::size_t i = 1; i < sorted.size(); ++i)
      centres.push_back((sorted[i - 1] + sorted[i]) / 2);
    // The middle between the largest value and the one that would follow.
    const double step =
        std::ldexp(1.0, std::ilogb(largest()) -
                            (element_.encoding == Encoding::floating ? element_.mantissa_bits : 0));
    centres.insert(centres.end(), {largest() + step / 2, largest() + step, largest() * 3});
    std::vector<double> probes = {0.0, -0.0, kInfinity, -kInfinity, 1e300, -1e300, 5e-324, -5e-324};
    for (const double centre : centres)
      for (const double probe :
           {centre, std::nextafter(centre, kInfinity), std::nextafter(centre, -kInfinity)}) {
        probes.push_back(probe);
        probes.push_back(-probe);
      }
    std::mt19937 random(7);
    const int high = std::ilogb(largest()) + 2, low = std::min(high - 40, -12);
    std::uniform_real_distribution<double> exponent(low, high);
    for (int i = 0; i < random_count; ++i)
      probes.push_back(std::exp2(exponent(random)) * (random() % 2 == 0 ? 1 : -1));
    return probes;
  }

  double largest() const { return extreme(1); }
  double smallest() const { return -extreme(-1); }

 private:
  double extreme(int sign) const {
    double most = -kInfinity;
    for (const double value : values_)
      if (!std::isnan(value)) most = std::max(most, sign * value);
    return most;
  }

  std::uint32_t floating(double value, Overflow overflow) const {
    const std::uint32_t half = 1u << (element_.bits - 1);
    const bool negative = std::signbit(value);
    const double magnitude = std::abs(value);
    const std::uint32_t top = nearest_code(values_, half, largest(), true);
    const double ulp = std::ldexp(1.0, std::ilogb(largest()) - element_.mantissa_bits);
    const double limit = largest() + ulp / 2;
    // At the limit itself the tie goes to the largest value when its code is even.
    if (magnitude > limit || (magnitude == limit && top % 2 == 1))
      return overflowed(negative, overflow);
    const std::uint32_t code = nearest_code(values_, half, std::min(magnitude, largest()), true);
    if (code == 0 && element_.specials == Specials::fnuz) return 0;
    return negative ? code | half : code;
  }

  std::uint32_t overflowed(bool negative, Overflow overflow) const {
    const double wanted = negative ? -kInfinity : kInfinity;
    if (overflow == Overflow::special) {
      for (std::uint32_t code = 0; code < values_.size(); ++code)
        if (decode(element_, code) == wanted) return code;
      for (std::uint32_t code = 0; code < values_.size(); ++code)
        if (std::isnan(decode(element_, code))) return code;
    }
    const double finite = negative ? smallest() : largest();
    for (std::uint32_t code = 0; code < values_.size(); ++code)
      if (values_[code] == finite) return code;
    return 0;
  }

  const Element& element_;
  std::vector<double> values_;
};

/// Built-in formats of at most 8 bits.
inline std::vector<const Element*> narrow_elements() {
  std::vector<const Element*> narrow;
  for (const Element* element : elements())
    if (element->bits <= 8) narrow.push_back(element);
  return narrow;
}

}  // namespace ladder::testing
