// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "bounds/curve.h"
#include "bounds/einsum.h"
#include "bounds/mapping.h"

namespace ladder::bounds {

/// Tile sizes considered for each rank.
enum class Factors {
  divisors,  ///< the paper's perfect factors
  integers,  ///< every number of blocks, each block as even as can be
};

struct Options {
  Factors factors = Factors::integers;
  Space space = Space::streaming;
};

/// The paper's space: divisors of each rank, whole tiles of every tensor.
inline constexpr Options kPaper{Factors::divisors, Space::uniform};

/// Ascending tile sizes of a rank of `size`: its divisors, or ceil(size / j) for every j. Throws
/// InvalidArgument if `size` is below 1.
std::vector<std::int64_t> tile_sizes(std::int64_t size, Factors factors);

/// A point of the curve and a mapping that attains it.
struct Mapped {
  Point point;
  Mapping mapping;
};

/// The points of `ski_slope`, each with a mapping.
std::vector<Mapped> best_mappings(const Einsum& einsum, const Options& options = {});

/// Least traffic of every mapping of the space, for every buffer. A matmul takes a closed form, in
/// time proportional to the square of the number of tile sizes; anything else goes through all
/// tiles and those loop orders that no other order beats.
///
/// With integers and a window that skips (stride above the kernel), uneven blocks might move a
/// little less still; in every other case no tile size is missing.
///
/// A bound for mappings of this space only: a cache that keeps part of a tile may move less
/// between two points. `lower_bound` holds for any schedule.
Curve ski_slope(const Einsum& einsum, const Options& options = {});

/// The same by trying every order of every tile: the reference, for tests.
Curve exhaustive_slope(const Einsum& einsum, const Options& options = {});

}  // namespace ladder::bounds
