// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ladder {

/// a / b rounded up, of a >= 0 and b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
/// The smallest multiple of `to` that is no less than `value`.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return ceil_div(value, to) * to;
}

}  // namespace ladder
