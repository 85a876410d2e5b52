// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "program/affine.h"

namespace ladder {

/// Problems of one launch, side by side on the third dimension of its grid, each with its own rows
/// of activations and one of several weights: the program is that of one of them. A table says what
/// each is, so that the device decides which there are; or they are those of a batch.
struct Items {
  /// u32, of each item kItemWords: which weight, its first row, its rows, which are its tokens.
  /// Items without rows do nothing. A dependent launch waits for the preceding kernel, whose the
  /// table may be, before all else. -1: there is none, and each of `weights` weights has as many
  /// rows as the call has tokens, those of weight 0 first: for each as many items as it takes, of
  /// `rows` rows but for the last.
  BufferId table = -1;
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
  std::int64_t weights = 1, rows = 0;  ///< where there is no table
};
/// Those of a call of so many tokens where there is no table, in whole groups: the last may have no
/// weight.
std::int64_t count_of(const Items& items, std::int64_t tokens);
/// What a table would say of one of them; no rows where it has no weight.
struct ItemRows {
  std::int64_t weight, first, rows;
};
ItemRows rows_of(const Items& items, std::int64_t item, std::int64_t tokens);
constexpr std::int64_t kItemWords = 3;
/// Bytes: where a buffer of an item begins, if its rows do not say. The widest access has as many.
constexpr std::int64_t kItemAlignment = 16;

}  // namespace ladder
