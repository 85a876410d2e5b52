// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ladder {

/// Parts of K for `tiles` tiles of `k_tiles` k-tiles each: one, and of 2 to `most` the `more` that
/// leave the fullest of `places` for CTAs least to do.
std::vector<std::int64_t> splits_for(std::int64_t tiles, std::int64_t k_tiles, std::int64_t places,
                                     std::int64_t most, std::size_t more);

/// The last of `tiles` tiles, which would fill `places` in part, and into how many parts K of each
/// may go.
struct TailSplits {
  std::int64_t tiles, splits;
};
/// The `count` of 2 to `most` parts that leave the fullest place least to do, less than one part
/// would.
std::vector<TailSplits> tails_of(std::int64_t tiles, std::int64_t k_tiles, std::int64_t places,
                                 std::int64_t most, std::size_t count);

}  // namespace ladder
