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

}  // namespace ladder
