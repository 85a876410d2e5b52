// SPDX-License-Identifier: Apache-2.0
#include "schedule/decoding.h"

#include <algorithm>
#include <bit>

#include "expr/scale_place.h"
#include "layout/bit_plan.h"

namespace ladder {

bool joins_whole_scales(const Problem& problem) {
  const Weight& weight = problem.weight;
  const Scalar operand = problem.activation();
  if (problem.has_bytes_of_x() || !weight.type.has_integer_scales() ||
      weight.stored_zero != Zero::none || !rounds_no_product(problem)) {
    return false;
  }
  const int mantissa = mantissa_bits(operand);
  if (weight.bits > mantissa) return false;
  // Scales are odd at their largest, so that no other has more bits beside an odd number.
  const auto largest = static_cast<int>(max_value(*weight.type.scale));
  return std::ranges::all_of(unpack_plan(weight.bits, mantissa).pairs, [&](const auto& pair) {
    const int constant = (1 << (mantissa - pair.offset)) + weight.zero;
    return (constant >> std::countr_zero(static_cast<unsigned>(constant))) * largest <
           2 << mantissa;
  });
}

}  // namespace ladder
