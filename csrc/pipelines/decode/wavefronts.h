// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "expr/problem.h"
#include "pipelines/decode/schedule.h"

namespace ladder {

/// Wavefronts of shared memory (layout/conflicts.h) that one CTA takes at the least: activations
/// written once and read by load-matrix in every warp, with the padding that the schedule gives
/// their rows, weights of the ring written and read once, and look-ups in a table, each copy of
/// which lies in a bank of its own. Sums come on top.
std::int64_t shared_wavefronts(const DecodeSchedule& schedule, const Problem& problem);

}  // namespace ladder
