// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.h"

namespace ladder::bounds {

/// a * b. Throws InvalidArgument if that is past 63 bits.
inline std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  LADDER_REQUIRE(!__builtin_mul_overflow(a, b, &result), a, " * ", b, " does not fit 63 bits");
  return result;
}

/// a + b. Throws InvalidArgument if that is past 63 bits.
inline std::int64_t total(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  LADDER_REQUIRE(!__builtin_add_overflow(a, b, &result), a, " + ", b, " does not fit 63 bits");
  return result;
}

}  // namespace ladder::bounds
