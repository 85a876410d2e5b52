// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/integers.h"
#include "expr/weight.h"
#include "program/program.h"

namespace ladder {

/// Superblocks that `columns` of a k-tile have, of weights that have such.
inline std::int64_t superblocks_in(std::int64_t columns, const Weight& weight) {
  return std::max<std::int64_t>(columns / weight.superblocks->columns, 1);
}

/// Bytes of a ring of so many scales, as many zero points and second scales of both, where there
/// are such, each a buffer of its own.
inline std::int64_t per_group_bytes(const Weight& weight, std::int64_t scales,
                                    std::int64_t seconds) {
  const auto buffer = [](std::int64_t elements, Scalar scalar) {
    return round_up(elements * bytes_of(scalar), std::int64_t{kSharedAlignment});
  };
  std::int64_t bytes = 0;
  if (weight.scale) bytes += buffer(scales, weight.scale_in_memory());
  if (weight.stored_zero != Zero::none) bytes += buffer(scales, weight.zero_in_memory());
  if (weight.superblocks) {
    bytes += weight.seconds() * buffer(seconds, weight.superblocks->seconds);
  }
  return bytes;
}

}  // namespace ladder
