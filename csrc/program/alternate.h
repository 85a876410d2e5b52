// SPDX-License-Identifier: Apache-2.0
//
// Waves that alternate: of the two waves of each SIMD one multiplies while the other moves data
// (ping-pong). Half of a block's threads is kept one phase behind the other half by a barrier that
// it alone meets. A barrier of the machine is over when every wave has met one, whichever it was.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "program/affine.h"

namespace ladder {

/// Of a block's threads. Waves are dealt out to the SIMDs of a compute unit in turn: of eight waves
/// on four SIMDs each half has one of every SIMD.
enum class Half { both, first, second };
constexpr int kHalves = 2;

/// All threads of the block; in an Alternate those of `half`.
struct Barrier {
  Half half = Half::both;
};
/// From here on instructions of a wave go before those of others of its SIMD, or no longer do. In
/// an Alternate alone.
struct Priority {
  bool raised;
};

struct Alternate;
struct Statement;

/// A statement at one time, with the trips of the loops around it.
struct PhaseStep {
  const Statement* statement;
  std::vector<std::pair<VariableId, std::int64_t>> trips;
};
/// What a half does between two barriers.
using Phase = std::vector<PhaseStep>;
/// All phases of a half, one more than the barriers that it meets. The n-th of both halves run at
/// the same time, in any order, and behind the one before of both.
std::vector<Phase> phases_of(const Alternate& part, Half half);

}  // namespace ladder
