// SPDX-License-Identifier: Apache-2.0
//
// Floating-point weights to codes, scales and zero points.
#pragma once

#include <cstdint>

#include "base/parallel.h"
#include "cpu/linear.h"
#include "types/ttype.h"

namespace ladder::cpu {

enum class Rounding {
  nearest,  ///< scale from the largest magnitude of the block
  search,   ///< of 24 scales more, down to a fifth, the one with the least squared error
};

/// Memory for the parts of a quantised [n, k] weight; shapes as in WeightView. Parts that `type`
/// does not have are not touched.
struct QuantizedParts {
  std::uint32_t* codes;
  void* scales;
  void* zeros;
  float* scale2;  ///< [second_scales(type, n)]
};

/// Quantises `weight` [n, k] row-major to `type` by the rules of types/scale_search.h. The stored
/// (rounded) scale is the one that codes are chosen for. Rows of blocks are divided over threads;
/// the result depends neither on them nor on `isa`.
/// Throws InvalidArgument for a weight that is not finite (naming row and column), and for an
/// element of more than 8 bits.
void quantize(const float* weight, std::int64_t n, std::int64_t k, const TType& type,
              Rounding rounding, const QuantizedParts& parts, Isa isa, const Parallel& parallel);

}  // namespace ladder::cpu
