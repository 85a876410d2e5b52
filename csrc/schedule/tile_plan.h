// SPDX-License-Identifier: Apache-2.0
//
// Algorithm 1 of LADDER for one matmul: the core, the hint, a tile at every level, and the
// primitives that carry each tensor between them.
#pragma once

#include <string>
#include <vector>

#include "device/hint.h"
#include "schedule/core.h"
#include "schedule/placement.h"
#include "schedule/tile_moves.h"

namespace ladder {

/// out[m, n] = sum(k) a[m, k] * b[n, k] and the types of its tensors. The weights b are the first
/// operand of the instruction: only that one may come from registers everywhere.
struct TileMatmul {
  std::int64_t m, n, k;
  TileType a, b, out;
};

struct TilePlan {
  TileMatmul matmul;
  const Device* device;
  Core core;
  Hint hint;
  Shape block;     ///< [m, n, k] of one thread block's step
  Shape fragment;  ///< [m, n, k] in registers at once
  /// In order: from global memory to shared, then to registers. b is converted by the first or by
  /// the second, as `places` says; its pieces change type with it.
  std::vector<TileMove> a, b;
  std::vector<ConvertCost> places;  ///< of b, cheapest first; empty when b needs no conversion

  /// From the sums of block (row, column) to the output: the padding cut off, then converted.
  std::vector<Transform> store(std::int64_t row, std::int64_t column) const;
};

/// Throws Unsupported as choose_core does, InvalidArgument for sizes below 1.
TilePlan tile_plan(const TileMatmul& matmul, const Device& device);
/// The same with the block's tile given, [m, n, k]: whole multiples of the fragment.
TilePlan tile_plan(const TileMatmul& matmul, const Device& device, const Shape& block);

/// Roller's choice: from one fragment by one run, the axis that saves most traffic for the shared
/// memory it costs, while two steps fit a block, sums fit the registers and there is a block for
/// every multiprocessor.
Shape block_tile(const TileMatmul& matmul, const Device& device, const Core& core,
                 const Hint& hint);

/// Every decision in lines.
std::string to_string(const TilePlan& plan);

}  // namespace ladder
