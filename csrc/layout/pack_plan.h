// SPDX-License-Identifier: Apache-2.0
//
// From canonical rows to the image (layout/weight_image.h) by whole words, for widths that are
// powers of two.
//
// Rows r and r + 8 of one block hold exactly the words that four lanes 4 g .. 4 g + 3 own of one
// row unit, r = 16 u + g: 4 b words either way, 128 codes. Between the two lies a permutation of
// the bits' numbers, so a thread that has those words permutes them by a handful of steps
// (layout/word_permutation.h), none of which looks at a single code.
#pragma once

#include "layout/word_permutation.h"

namespace ladder {

/// Word i of the input is word i % (2 b) of row r + 8 (i / (2 b)); word j of the result is word
/// j % b of the unit for lane 4 g + j / b.
/// Throws Unsupported for widths but 1, 2 and 4, where a lane has a unit in one piece of 16 bytes.
WordPermutation image_permutation(int bits, int operand_bits = 16);

}  // namespace ladder
