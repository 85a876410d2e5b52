// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "bounds/verdict.h"
#include "pipelines/schedule.h"
#include "schedule/decisions.h"

namespace ladder {

/// Bytes that a candidate moves, by the tensors that its blocks read: nothing it does takes less.
struct Traffic {
  double global_bytes;  ///< weights with their padding, scales, activations and outputs, once
  /// What the multiprocessor with most blocks reads, times the number of multiprocessors: the
  /// device waits for it.
  double shared_bytes;
};
Traffic traffic(const Schedule& schedule, const Decisions& decisions);

/// Operations per second of the device's matrix instructions on what x of `problem` is
/// rounded to; 0 where it has none, or none of a published rate.
double arithmetic_rate(const Problem& problem, const Device& device);

/// What any schedule must move for `problem`, against the memories of `device`: L2 before global
/// memory and, where its rate is known, shared memory before L2. Arithmetic without an
/// `arithmetic_rate` takes no time.
bounds::Ruler ruler_of(const Problem& problem, const Device& device);

/// `traffic` against the ruler: how much of it is needed, and which memory binds.
bounds::Verdict verdict_of(const Schedule& schedule, const Decisions& decisions);

/// The same candidates, kept ones first, those dropped that cannot beat `best_seconds`, measured or
/// estimated: their own traffic takes longer. The reason says which memory. A candidate that took
/// `best_seconds` is never dropped, since the traffic is a bound of it too. Measured means with
/// weights that come from global memory, as layers of a model find them. Throws InvalidArgument
/// unless best_seconds > 0.
std::vector<Candidate> pruned(std::vector<Candidate> candidates, const Decisions& decisions,
                              double best_seconds);

}  // namespace ladder
