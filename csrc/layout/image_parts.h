// SPDX-License-Identifier: Apache-2.0
//
// What kernels read of a weight, in one buffer, so that a call passes and checks one tensor:
//
//     codes | scales | zeros | scale2 | gather
//
// Codes are the image of layout/weight_image.h; the others are the parameters of the same names of
// pipelines/lower.h. Those that the weight has not take no room. Each begins at a multiple of 128
// bytes, a line of the memory system.
#pragma once

#include <cstdint>
#include <optional>

#include "expr/problem.h"

namespace ladder {

struct ImageParts {
  struct Part {
    std::int64_t offset_bytes, elements;
    Scalar scalar;
  };
  std::int64_t code_words, words;     ///< of the codes, of all
  std::optional<Part> scales, zeros;  ///< [groups][ceil(n / 64)][8][8]
  /// One, or [n], or as scales [superblocks], those of zeros behind all those of scales; [k], int32
  /// as u32.
  std::optional<Part> scale2, gather;
};

/// Of a weight of `problem`; its activations, tokens and bias do not matter.
ImageParts image_parts(const Problem& problem);

}  // namespace ladder
