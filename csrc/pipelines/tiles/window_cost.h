// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "expr/problem.h"
#include "pipelines/linear/objection.h"
#include "pipelines/tiles/schedule.h"

namespace ladder {

/// Cycles of one scheduler in which the warps of a CTA compute where the windows of one k-tile lie;
/// 0 where x is rows. Counted from the emitted text, and fitted to no measurement: for each piece
/// of 16 bytes two quotients by constants and an address, for single numbers that and a column's
/// two for each.
inline double window_cycles(const TileSchedule& s, const Problem& problem, int granule) {
  constexpr double kOfPiece = 20, kOfNumber = 32;
  if (problem.windows() == nullptr) return 0;
  const double numbers = static_cast<double>(s.tokens) * s.columns;
  const bool pieces = has_whole_pieces(problem, granule);
  const double each = pieces ? kOfPiece * bytes_of(problem.formats.x) / granule : kOfNumber;
  return numbers * each / 32;
}

}  // namespace ladder
