// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "types/quantize.h"

namespace ladder {

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
  std::ranges::sort(codes, {}, [&](std::uint8_t code) { return values_[code]; });
  // +0 and -0 are two codes and one value; a step at 0 between them would send -0 astray.
  const auto same = [&](std::uint8_t a, std::uint8_t b) { return values_[a] == values_[b]; };
  codes.erase(std::ranges::unique(codes, same).begin(), codes.end());
  steps_.push_back({-std::numeric_limits<double>::infinity(), codes[0], true});
  for (std::size_t i = 1; i < codes.size(); ++i) {
    const double middle = (double{values_[codes[i - 1]]} + double{values_[codes[i]]}) / 2;
    steps_.push_back({middle, codes[i], encode(element, middle) == codes[i]});
  }
}

std::uint8_t Encoder::search(float value) const {
  if (std::isnan(value)) [[unlikely]] {
    for (std::size_t code = 0; code < values_.size(); ++code)
      if (std::isnan(values_[code])) return static_cast<std::uint8_t>(encode(*element_, value));
    return steps_.front().code;
  }
  const auto after = std::partition_point(steps_.begin() + 1, steps_.end(), [&](const Step& step) {
    return step.tie_goes_up ? value >= step.above : value > step.above;
  });
  return std::prev(after)->code;
}

}  // namespace ladder
