// SPDX-License-Identifier: Apache-2.0
//
// The kernels of image_kernels.h for widths of 1, 2 and 4 bits, where rows and image exchange whole
// words (layout/pack_plan.h). Internal to csrc/codegen/weights.
//
// A warp takes g of the eight rows of each row unit, 4 lanes the four units, 8 lanes along K: with
// one load or store every lane moves 16 bytes, and a warp whole lines of 128. A thread permutes
// the words of its two rows and exchanges them with the three lanes of the other units, after which
// it has the 16 bytes that one lane of the image owns. No shared memory, no step per code.
#pragma once

#include <string>
#include <string_view>

namespace ladder::weights {

/// Whether rows and image of this width exchange whole words.
bool moves_words(int bits);

/// Blocks of 64 columns that the 256 threads of a block take, of 64 rows.
int word_blocks_per_tile(int bits);

std::string pack_words_source(int bits, std::string_view prelude);
std::string unpack_words_source(int bits, std::string_view prelude);

}  // namespace ladder::weights
