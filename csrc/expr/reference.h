// SPDX-License-Identifier: Apache-2.0
//
// What is right: a problem with data, in double.
#pragma once

#include <cstdint>
#include <vector>

#include "expr/problem.h"

namespace ladder {

/// The operands of a problem as bits of their scalars, row-major; empty where it has none. Of a
/// layer of experts those of one product.
struct ProblemData {
  std::vector<std::uint32_t> x;              ///< [batch, m, k], columns in their order; or images
  std::vector<float> x_scales;               ///< [batch, m], of bytes
  std::vector<std::uint8_t> codes;           ///< [batch, n, k]
  std::vector<std::uint32_t> scales, zeros;  ///< [batch, n, groups], as memory has them
  float scale2 = 1;
  std::vector<float> scale2_of_rows;    ///< [batch][n], instead
  std::vector<std::uint32_t> seconds;   ///< [batch, n, superblocks, seconds()]
  float y_scale = 1;                    ///< of y of 8 bits
  std::vector<std::uint32_t> bias;      ///< [batch, n]
  std::vector<std::uint32_t> residual;  ///< [batch, m, n]
  std::vector<std::int32_t> gather;     ///< [k], a permutation

  /// Of a row of [batch, n]; 1 where `problem` has none.
  float second_scale(const Problem& problem, std::int64_t row) const;
  /// What scale, or zero point, of that row and group is times; 1 without superblocks.
  double second_of_group(const Problem& problem, std::int64_t row, std::int64_t group,
                         bool of_zeros) const;
};

/// y in double, and the sum of the magnitudes of everything added up, which scales its error bound.
/// Of y of 8 bits what becomes a code: result and inverse as they are, the product not rounded.
struct Reference {
  std::vector<double> y, magnitude;  ///< [batch, m, n]
};
Reference evaluate(const Problem& problem, const ProblemData& data);

}  // namespace ladder
