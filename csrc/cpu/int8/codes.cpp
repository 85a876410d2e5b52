// SPDX-License-Identifier: Apache-2.0
#include "cpu/int8/codes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "base/error.h"

namespace ladder::cpu::int8 {
namespace {

/// Steps of which whole numbers up to 255 apart are tried for exactness.
constexpr int kLeastExponent = -126, kMostExponent = 120;

bool fits(const std::vector<float>& values, double step) {
  double low = 0, high = 0;
  for (const float value : values) {
    const double quotient = value / step;
    if (quotient != std::nearbyint(quotient)) return false;
    low = std::min(low, quotient);
    high = std::max(high, quotient);
  }
  return high - low <= 255;
}

/// The largest power of two of which all values are multiples within 255 of each other, or 0.
double exact_step(const std::vector<float>& values) {
  for (int exponent = kMostExponent; exponent >= kLeastExponent; --exponent)
    if (const double step = std::ldexp(1.0, exponent); fits(values, step)) return step;
  return 0;
}

/// The step max / q, q of 64 to 127, whose multiples are nearest to the values.
double rounded_step(const std::vector<float>& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, std::abs(double{value}));
  double best = 0, least = HUGE_VAL;
  for (int q = 127; q >= 64; --q) {
    // As a float32, because that is what products are multiplied by.
    const double step = static_cast<float>(most / q);
    double error = 0;
    for (const float value : values)
      error = std::max(error, std::abs(value - std::nearbyint(value / step) * step));
    if (error < least) best = step, least = error;
  }
  return best;
}

std::unique_ptr<Codes> build(const Element& element) {
  if (element.bits > 8)
    fail<Unsupported>("activation_type int8 takes weights of 1 to 8 bits, not ", element.name);
  const std::vector<float> values = decode_table(element);
  for (std::size_t code = 0; code < values.size(); ++code)
    if (!std::isfinite(values[code]))
      fail<Unsupported>("activation_type int8 does not take ", element.name, ", whose code ", code,
                        " is not a finite number");
  auto codes = std::make_unique<Codes>();
  double step = exact_step(values);
  codes->exact = step != 0;
  if (!codes->exact) step = rounded_step(values);
  std::vector<int> numbers;
  for (const float value : values)
    numbers.push_back(static_cast<int>(std::nearbyint(value / step)));
  const int first = std::min(0, *std::ranges::min_element(numbers));
  codes->zero = -first;
  codes->step = static_cast<float>(step);
  bool identity = true, flip = true;
  for (int c = 0; c < 256; ++c) {
    const int code = c % static_cast<int>(values.size());
    const int u = numbers[static_cast<std::size_t>(code)] - first;
    codes->u[c] = static_cast<std::uint8_t>(u);
    codes->most = std::max(codes->most, u);
    identity = identity && u == code;
    flip = flip && u == (code ^ (1 << (element.bits - 1)));
  }
  codes->kind = identity ? Codes::Kind::identity : flip ? Codes::Kind::flip : Codes::Kind::table;
  return codes;
}

}  // namespace

const Codes& codes_of(const Element& element) {
  static std::shared_mutex mutex;
  static std::map<const Element*, std::unique_ptr<Codes>> known;
  {
    const std::shared_lock lock(mutex);
    if (const auto found = known.find(&element); found != known.end()) return *found->second;
  }
  auto codes = build(element);
  const std::unique_lock lock(mutex);
  return *known.try_emplace(&element, std::move(codes)).first->second;
}

void check_type(const TType& type, std::int64_t k) {
  const Codes& codes = codes_of(*type.element);
  const bool scaled = type.scale != nullptr && !(type.block.rows == 0 && type.block.columns == 0);
  if (!codes.exact && !scaled)
    fail<Unsupported>("activation_type int8 rounds the values of ", type.element->name,
                      " to 8 bits, which wants a scale for each row or group; ", to_string(type),
                      " has none");
  if (type.block.columns % 8 != 0 && type.block.columns < k)
    fail<Unsupported>("activation_type int8 takes groups of a multiple of 8 columns, not of ",
                      type.block.columns);
}

}  // namespace ladder::cpu::int8
