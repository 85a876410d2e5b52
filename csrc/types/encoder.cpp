// SPDX-License-Identifier: Apache-2.0
#include "types/encoder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace ladder {
namespace {

constexpr std::size_t kRow = 16;

/// How many of 16 numbers are less than `value`.
std::size_t count_less(const float* numbers, float value) {
  int count = 0;
  for (std::size_t i = 0; i < kRow; ++i) count += numbers[i] < value ? 1 : 0;
  return static_cast<std::size_t>(count);
}

}  // namespace

Encoder::Encoder(const Element& element) : element_(&element) {
  LADDER_REQUIRE(element.bits <= 8, "type ", element.name, " has ", element.bits,
                 " bits; weights are quantised to at most 8");
  values_ = decode_table(element);
  integer_ = element.encoding == Encoding::unsigned_integer ||
             element.encoding == Encoding::signed_integer;
  low_ = static_cast<float>(min_value(element));
  high_ = static_cast<float>(max_value(element));
  mask_ = (1 << element.bits) - 1;
  // One code per finite value, the one that encode() chooses: steps between neighbours follow.
  std::vector<std::uint8_t> codes;
  for (int code = 0; code < element.code_count(); ++code)
    if (std::isfinite(values_[code]) &&
        encode(element, values_[code]) == static_cast<std::uint32_t>(code))
      codes.push_back(static_cast<std::uint8_t>(code));
  // +0 and -0 are two codes and one value, of which the first code is kept, whatever the library's
  // way to sort; a step at 0 between them would send -0 astray.
  std::ranges::stable_sort(codes, {}, [&](std::uint8_t code) { return values_[code]; });
  const auto same = [&](std::uint8_t a, std::uint8_t b) { return values_[a] == values_[b]; };
  codes.erase(std::unique(codes.begin(), codes.end(), same), codes.end());
  // below_[i] is the largest float32 that is still nearer to the lower one of two neighbours, so
  // that "greater than" decides, ties included.
  std::vector<float> below;
  codes_.push_back(codes[0]);
  for (std::size_t i = 1; i < codes.size(); ++i) {
    const double middle = (double{values_[codes[i - 1]]} + double{values_[codes[i]]}) / 2;
    float last = static_cast<float>(middle);
    // By value, not by code: halfway below zero the tie goes to -0, and one of +0 and -0 is kept.
    const bool up = values_[encode(element, middle)] == values_[codes[i]];
    if (last > middle || (last == middle && up))
      last = std::nextafter(last, -std::numeric_limits<float>::infinity());
    below.push_back(last);
    codes_.push_back(codes[i]);
  }
  const float never = std::numeric_limits<float>::infinity();
  below.resize((below.size() + kRow - 1) / kRow * kRow, never);
  row_begins_.assign(kRow, never);
  for (std::size_t row = 0; row < below.size() / kRow; ++row) row_begins_[row] = below[row * kRow];
  below_ = std::move(below);
}

std::uint8_t Encoder::search(float value) const {
  if (std::isnan(value)) [[unlikely]] {
    for (std::size_t code = 0; code < values_.size(); ++code)
      if (std::isnan(values_[code])) return static_cast<std::uint8_t>(encode(*element_, value));
    return codes_.front();
  }
  // Two counts of 16 comparisons, which the compiler turns into vector code, instead of a search
  // whose branches nobody can predict.
  const std::size_t rows = count_less(row_begins_.data(), value);
  if (rows == 0) return codes_.front();
  const std::size_t row = rows - 1;
  return codes_[row * kRow + count_less(below_.data() + row * kRow, value)];
}

std::optional<FloatRounding> float_rounding(const Element& e) {
  if (e.encoding != Encoding::floating || e.bits > 16) return std::nullopt;
  const int smallest = 1 - e.bias, unit = smallest - e.mantissa_bits;
  // Below 2^-126 float32 has no normal numbers, and the constant below must be finite.
  if (smallest < -126 || unit + 23 > 127 || unit < -149 || max_value(e) > 0x1.fffffep127)
    return std::nullopt;
  const int shift = 23 - e.mantissa_bits;
  const std::uint32_t mask = (1u << shift) - 1;
  return FloatRounding{
      .largest = static_cast<float>(max_value(e)),
      .smallest_normal = std::ldexp(1.0f, smallest),
      .subnormal = std::ldexp(1.0f, unit + 23),
      .shift = shift,
      .half = mask >> 1,
      .mask = mask,
      .flip = e.mantissa_bits == 0 ? static_cast<std::uint32_t>(127 - e.bias) & 1 : 0,
      .rebias = static_cast<std::uint32_t>(127 - e.bias) << e.mantissa_bits,
  };
}

}  // namespace ladder
