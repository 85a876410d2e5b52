// SPDX-License-Identifier: Apache-2.0
#include "types/element.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"

namespace ladder {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double decode_floating(const Element& e, std::uint32_t code) {
  const std::uint32_t magnitude = code & ((1u << (e.bits - 1)) - 1);
  const bool negative = (code >> (e.bits - 1)) != 0;
  const std::uint32_t exponent = magnitude >> e.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1u << e.mantissa_bits) - 1);
  const std::uint32_t top = (1u << e.exponent_bits) - 1;
  switch (e.specials) {
    case Specials::none: break;
    case Specials::ieee:
      if (exponent == top) return mantissa != 0 ? kNan : negative ? -kInfinity : kInfinity;
      break;
    case Specials::nan_only:
      if (magnitude == (1u << (e.bits - 1)) - 1) return kNan;
      break;
    case Specials::fnuz:
      if (negative && magnitude == 0) return kNan;
      break;
  }
  // Subnormal numbers have the exponent of the smallest normal ones and no implicit one.
  const double significand = exponent == 0 ? mantissa : mantissa + (1u << e.mantissa_bits);
  const int power = static_cast<int>(std::max(exponent, 1u)) - e.bias - e.mantissa_bits;
  const double value = std::ldexp(significand, power);
  return negative ? -value : value;
}

/// The code of NaN or of an infinity of the given sign, where the format has one.
std::optional<std::uint32_t> nan_code(const Element& e) {
  if (e.encoding == Encoding::exponent)
    return e.specials == Specials::none ? std::nullopt : std::optional((1u << e.bits) - 1);
  if (e.encoding != Encoding::floating) return std::nullopt;
  switch (e.specials) {
    case Specials::none: return std::nullopt;
    case Specials::ieee:  // quiet: the top mantissa bit
      if (e.mantissa_bits == 0) return std::nullopt;
      return ((1u << e.exponent_bits) - 1) << e.mantissa_bits | 1u << (e.mantissa_bits - 1);
    case Specials::nan_only: return (1u << (e.bits - 1)) - 1;
    case Specials::fnuz: return 1u << (e.bits - 1);
  }
  return std::nullopt;
}

std::optional<std::uint32_t> infinity_code(const Element& e, bool negative) {
  if (e.encoding != Encoding::floating || e.specials != Specials::ieee) return std::nullopt;
  const std::uint32_t code = ((1u << e.exponent_bits) - 1) << e.mantissa_bits;
  return negative ? code | 1u << (e.bits - 1) : code;
}

/// Largest magnitude code of a floating format that is a finite number.
std::uint32_t largest_magnitude(const Element& e) {
  const std::uint32_t all = (1u << (e.bits - 1)) - 1;
  if (e.specials == Specials::ieee) return ((all >> e.mantissa_bits) << e.mantissa_bits) - 1;
  return e.specials == Specials::nan_only ? all - 1 : all;
}

/// Nearest integer, ties to even, whatever the rounding mode of the thread.
double round_to_even(double value) {
  const double floor = std::floor(value);
  const double rest = value - floor;
  if (rest < 0.5) return floor;
  if (rest > 0.5) return floor + 1;
  return std::fmod(floor, 2.0) == 0 ? floor : floor + 1;
}

/// The magnitude code nearest to `value` >= 0, which may be one above largest_magnitude.
std::uint32_t round_magnitude(const Element& e, double value) {
  const int smallest = 1 - e.bias;  // exponent of the smallest normal number
  if (value == 0) return 0;
  const int exponent = std::max(std::ilogb(value), smallest);
  // In units of the last mantissa bit: below 2^(mantissa_bits + 1).
  const double units = std::ldexp(value, e.mantissa_bits - exponent), below = std::floor(units);
  const double biased = static_cast<double>(exponent - smallest) * (1u << e.mantissa_bits);
  // A carry out of the mantissa walks into the exponent, which is what IEEE's layout is for. The
  // implicit one of a normal number is the first of those carries.
  const double code = biased + below, rest = units - below;
  // Even is the code, not the units: they differ where there is no mantissa.
  const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(code, 2.0) != 0);
  return static_cast<std::uint32_t>(std::min(up ? code + 1 : code, 4294967295.0));
}

std::uint32_t overflowed(const Element& e, bool negative, std::uint32_t finite, Overflow overflow) {
  if (overflow == Overflow::saturate) return finite;
  if (const auto code = infinity_code(e, negative)) return *code;
  return nan_code(e).value_or(finite);
}

std::uint32_t encode_floating(const Element& e, double value, Overflow overflow) {
  const bool negative = std::signbit(value);
  const std::uint32_t sign = negative ? 1u << (e.bits - 1) : 0;
  const std::uint32_t largest = largest_magnitude(e);
  const std::uint32_t magnitude =
      std::isinf(value) ? largest + 1 : round_magnitude(e, std::fabs(value));
  if (magnitude > largest) return overflowed(e, negative, sign | largest, overflow);
  if (magnitude == 0 && e.specials == Specials::fnuz) return 0;  // -0 is the NaN there
  return sign | magnitude;
}

std::uint32_t encode_exponent(const Element& e, double value, Overflow overflow) {
  const std::uint32_t largest = (1u << e.bits) - (e.specials == Specials::none ? 1 : 2);
  if (!(value > 0)) return 0;
  if (std::isinf(value)) return overflowed(e, false, largest, overflow);
  const int power = std::ilogb(value);
  const double fraction = std::ldexp(value, -power);  // in [1, 2): the middle is 1.5
  const int low = power + e.bias;
  const int code = fraction > 1.5 || (fraction == 1.5 && (low & 1)) ? low + 1 : low;
  if (code > static_cast<int>(largest)) return overflowed(e, false, largest, overflow);
  return static_cast<std::uint32_t>(std::max(code, 0));
}

std::uint32_t encode_table(const Element& e, double value) {
  std::uint32_t best = 0;
  for (std::uint32_t code = 1; code < e.values.size(); ++code) {
    // Against the middle, which is exact: distances from a tiny or a huge value round to equal
    // ones.
    const double from = e.values[best], to = e.values[code], middle = (from + to) / 2;
    if (to > from ? value > middle : to < from && value < middle) best = code;
  }
  return best;
}

bool has_value(const Element& e, double value) {
  if (std::isnan(value)) return nan_code(e).has_value();
  if (std::isinf(value)) return infinity_code(e, value < 0).has_value();
  return decode(e, encode(e, value)) == value;
}

}  // namespace

double decode(const Element& e, std::uint32_t code) {
  LADDER_REQUIRE(e.bits == 32 || code >> e.bits == 0, "code ", code, " does not fit ", e.name,
                 ", which has ", e.bits, " bits");
  switch (e.encoding) {
    case Encoding::unsigned_integer: return code;
    case Encoding::signed_integer:
      return static_cast<double>(code) - (code >> (e.bits - 1) != 0 ? 1 << e.bits : 0);
    case Encoding::floating: return decode_floating(e, code);
    case Encoding::exponent:
      if (nan_code(e) == code) return kNan;
      return std::ldexp(1.0, static_cast<int>(code) - e.bias);
    case Encoding::table: return e.values[code];
  }
  fail<InternalError>("element ", e.name, " has no encoding");
}

std::uint32_t encode(const Element& e, double value, Overflow overflow) {
  if (std::isnan(value)) {
    const auto code = nan_code(e);
    LADDER_REQUIRE(code.has_value(), "value nan has no code in ", e.name);
    return *code;
  }
  switch (e.encoding) {
    case Encoding::unsigned_integer:
    case Encoding::signed_integer: {
      const double nearest = std::isinf(value) ? value : round_to_even(value);
      const double clamped = std::clamp(nearest, min_value(e), max_value(e));
      return static_cast<std::uint32_t>(static_cast<int>(clamped)) & ((1u << e.bits) - 1);
    }
    case Encoding::floating: return encode_floating(e, value, overflow);
    case Encoding::exponent: return encode_exponent(e, value, overflow);
    case Encoding::table: return encode_table(e, value);
  }
  fail<InternalError>("element ", e.name, " has no encoding");
}

double max_value(const Element& e) {
  switch (e.encoding) {
    case Encoding::unsigned_integer: return (1 << e.bits) - 1;
    case Encoding::signed_integer: return (1 << (e.bits - 1)) - 1;
    case Encoding::floating: return decode_floating(e, largest_magnitude(e));
    case Encoding::exponent:
      return std::ldexp(1.0, (1 << e.bits) - (e.specials == Specials::none ? 1 : 2) - e.bias);
    case Encoding::table: return *std::ranges::max_element(e.values);
  }
  fail<InternalError>("element ", e.name, " has no encoding");
}

double min_value(const Element& e) {
  switch (e.encoding) {
    case Encoding::unsigned_integer: return 0;
    case Encoding::signed_integer: return -(1 << (e.bits - 1));
    case Encoding::floating: return -max_value(e);
    case Encoding::exponent: return std::ldexp(1.0, -e.bias);
    case Encoding::table: return *std::ranges::min_element(e.values);
  }
  fail<InternalError>("element ", e.name, " has no encoding");
}

std::vector<float> decode_table(const Element& e) {
  LADDER_REQUIRE(e.bits <= 16, "a table of ", e.name, " would have 2^", e.bits, " entries");
  std::vector<float> values(static_cast<std::size_t>(e.code_count()));
  for (std::size_t code = 0; code < values.size(); ++code)
    values[code] = static_cast<float>(decode(e, static_cast<std::uint32_t>(code)));
  return values;
}

bool converts_exactly(const Element& from, const Element& to) {
  if (from.name == to.name) return true;
  // float32 has too many values to list; only itself holds them all.
  if (from.bits > 16) return false;
  for (int code = 0; code < from.code_count(); ++code)
    if (!has_value(to, decode(from, static_cast<std::uint32_t>(code)))) return false;
  return true;
}

std::vector<const Element*> exact_targets(const Element& from) {
  std::vector<const Element*> targets;
  for (const Element* to : elements())
    if (converts_exactly(from, *to)) targets.push_back(to);
  std::ranges::stable_sort(targets, {}, [](const Element* to) { return to->bits; });
  return targets;
}

}  // namespace ladder
