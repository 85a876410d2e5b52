// SPDX-License-Identifier: Apache-2.0
//
// What the kernels share that have a tile of the image in shared memory, one code per byte.
// Internal to csrc/codegen/weights.
#pragma once

#include <string>
#include <string_view>

namespace ladder::weights {

/// "(text >> right)" for shifts of either sign.
std::string shifted(const std::string& text, int right);

/// The place of a pair of the unit `u` in shared memory.
std::string place(int pair);

/// From the prelude to the first lines of a kernel that takes dequantize_tile(bits) and has `k` as
/// a parameter.
std::string tile_opening(int bits, std::string_view prelude, const std::string& name,
                         const std::string& parameters);
/// From `image` to `codes` of shared memory, with a barrier.
std::string codes_of_image(int bits);

}  // namespace ladder::weights
