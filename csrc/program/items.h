// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "program/affine.h"

namespace ladder {

/// Problems of one launch, side by side on the third dimension of its grid, each with its own rows
/// of activations and one of several weights: the program is that of one of them. The table says
/// what each is, so that the device decides which there are.
struct Items {
  /// u32, of each item kItemWords: which weight, its first row, its rows, which are its tokens.
  /// Items without rows do nothing. A dependent launch waits for the preceding kernel, whose the
  /// table may be, before all else.
  BufferId table;
  /// Where the buffers of an item begin, in elements per weight, per row or per item.
  enum class By { weight, row, item };
  struct Shift {
    BufferId buffer;
    By by;
    std::int64_t elements;
  };
  std::vector<Shift> shifts;
  /// So many items, one behind the other in the table, have one index in the third dimension: of
  /// kTile, which has as many blocks for each of the program's tiles, the innermost part says which
  /// of them. Blocks that run at a time then share weights of an expert with several items. Tables
  /// have whole groups.
  std::int64_t together = 1;
};
constexpr std::int64_t kItemWords = 3;
/// Bytes: where a buffer of an item begins, if its rows do not say. The widest access has as many.
constexpr std::int64_t kItemAlignment = 16;

}  // namespace ladder
