// SPDX-License-Identifier: Apache-2.0
//
// The compile matrix: every type, activation, kind of shape and number of tokens on every
// architecture of the device table, and samples of it, of which each cell is in some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

#include "device/device.h"
#include "expr/problem.h"

namespace ladder::testing {

struct Cell {
  const Device* device;
  Problem problem;                   ///< for any number of tokens
  std::vector<std::int64_t> tokens;  ///< one or more, each compiled
};

void PrintTo(const Cell& cell, std::ostream* out);

/// Cells of one kind on one device, of which a sample has one in `stride`.
struct Stratum {
  std::size_t stride;
  std::vector<Cell> cells;
};

/// The whole matrix.
const std::vector<Stratum>& strata();

/// The cells of strata() that `seed` chooses. As many seeds in a row as the largest stride have
/// every cell.
std::vector<const Cell*> sample(std::size_t seed);

}  // namespace ladder::testing
