// SPDX-License-Identifier: Apache-2.0
//
// A plan is a schedule that was measured as the best for a problem, kept by a store as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipelines/schedule.h"
#include "runtime/compile_ahead.h"
#include "schedule/decisions.h"

namespace ladder {

// In all of these `dependent_launch` is that of candidates(): measured in a chain of layers, its
// plans stand apart from those of kernels that run by themselves.

/// What a plan is for, as plans.json spells it: the machine as it was found, since others of its
/// name may differ (Device::found). The same with and without `dependent_launch` where
/// the device has none.
std::string plan_key(const Problem& problem, const Device& device, bool dependent_launch);

/// The schedule of that text, if the scheduler has it in its space: a plan is checked when read.
std::optional<Schedule> schedule_called(const std::string& text, const Decisions& decisions,
                                        bool dependent_launch);

/// A plan that the scheduler has.
struct Plan {
  Schedule schedule;
  std::int64_t measured;  ///< schedules that it was the fastest of; 0: not known
};

/// The plan that a store holds for the problem, if the scheduler has its schedule.
std::optional<Plan> plan_of(const Decisions& decisions, bool dependent_launch);

/// What to compile where there is no plan, in order: the scheduler's own choices, diversified
/// (pipelines/diversified.h).
std::vector<Schedule> schedules_to_try(const Decisions& decisions, bool dependent_launch);
/// The same, out of what candidates() gave.
std::vector<Schedule> schedules_to_try(std::vector<Candidate> all);

/// The scheduler's best guesses, diversified, that no store knows to be rejected, at most `count`,
/// for measuring. Their kernels are compiled ahead, all at once, where a store can hold them; for
/// each that is rejected (rejection()) the next two guesses are, which spill more often than
/// the first, and once more for those still missing, or until there is one. Of one schedule the
/// guesses are schedules_to_try(): it is what a session takes unmeasured. No kernel is begun after
/// `deadline`. Behind them the dense product, where it is a candidate.
std::vector<Schedule> schedules_to_measure(const Decisions& decisions, bool dependent_launch,
                                           std::size_t count, Deadline deadline = never());

}  // namespace ladder
