// SPDX-License-Identifier: Apache-2.0
//
// The rules of types/scale_search.h as device functions, which all kernels that quantise share.
// Internal to csrc/codegen/cuda.
#pragma once

#include <cstdint>
#include <string>

#include "types/scale_search.h"

namespace ladder::cuda {

/// Numbers of steps of a search, in their order: those taken without a search too, those before the
/// coarse steps, and how many there are up to the last coarse step and to the last fine step. All
/// 0: the type stores no scale.
struct Steps {
  unsigned nearest, first, coarse, fine;
};
Steps steps_of(const TType& type);

/// Choice, a scale and a zero point; Cover, what candidates are made of; cover_of(least, greatest);
/// first_choice(cover, unit); fraction_of(step, middle), is_coarse(step) and choice_of(step, cover,
/// fraction, unit); inverse_of(choice, unit); grid_of(weight, choice, inverse);
/// squared_error(weight, choice, inverse, unit, tables); and the functions of quantize_values.h.
std::string rule_functions(const TType& type);

/// kTeam, `lanes` of a warp; added(sum), the sum of a team's; widen_range(weight, least, greatest)
/// and team_range(least, greatest).
std::string team_functions(std::int64_t lanes);

/// `unit`, the second scale, from the greatest magnitude at `found`; "" where rows have their own.
std::string unit(const TType& type);
/// The same of the block's row, `block_row`, where it is `there`.
std::string unit_of_rows(const TType& type);
/// Fills `tables` by the block's `threads`, and has `unit`.
std::string tables_and_unit(const TType& type, const std::string& threads);

/// Stores scale, zero and second scale of `best` as those of `block`.
std::string stores_of(const TType& type);

}  // namespace ladder::cuda
