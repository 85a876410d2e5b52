// SPDX-License-Identifier: Apache-2.0
//
// Algorithm 1 of LADDER for one matmul: the core, the hint, a tile at every level, and the
// primitives that carry each tensor between them.
#pragma once

#include <string>
#include <vector>

#include "schedule/decisions.h"
#include "schedule/tile_moves.h"

namespace ladder {

struct TilePlan {
  Problem problem;
  const Device* device;
  OperandDecisions decisions;
  Shape fragment;  ///< [m, n, k] in registers at once
  /// In order: from global memory to shared, then to registers. b is converted by the second where
  /// that is decided, else by the first; its pieces change type with it.
  std::vector<TileMove> a, b;

  /// From the sums of block (row, column) to the output: the padding cut off, then converted.
  std::vector<Transform> store(std::int64_t row, std::int64_t column) const;
};

/// Of our kernel that multiplies activations as they are, where there is one and weights are
/// converted by it, else of a dense product by whatever instruction the device has. Of a batch, of
/// one of its products.
/// Throws Unsupported as choose_core does, InvalidArgument for a problem without meaning.
TilePlan tile_plan(const Problem& problem, const Device& device);
/// Of what was decided for it; blocks are whole fragments.
TilePlan tile_plan(const Problem& problem, const Device& device, OperandDecisions decisions);

/// Every decision in lines.
std::string to_string(const TilePlan& plan);

}  // namespace ladder
