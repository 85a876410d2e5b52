// SPDX-License-Identifier: Apache-2.0
//
// Kernels of activations are written once, in CUDA's words, which the preludes of other targets
// have as macros. What is not a word of all of them is here.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace ladder::activations {

struct Words {
  std::string_view (*prelude)();
  std::string_view lanes;     ///< of a warp, an expression
  std::string_view blocks_x;  ///< of the grid, of kernels whose text has THREADS
  std::string_view blocks_y;
  bool any_threads;       ///< a block may have fewer threads than its kernel was compiled for
  bool dependent_launch;  ///< has such launches
  bool converts_e4m3;     ///< an instruction rounds to e4m3, and none reads e4m3fnuz
};

/// What stands in the place of a word of a text.
struct Part {
  std::string_view what;
  std::string by;
};

/// The prelude of `words`, and behind it `text` with its parts, put in one after the other.
std::string text_of(const Words& words, std::string text, std::initializer_list<Part> parts);

}  // namespace ladder::activations
