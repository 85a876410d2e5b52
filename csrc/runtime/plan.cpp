// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan.h"

#include "runtime/kernels.h"

namespace ladder {
namespace {

// Part of the name of a plan: measurements of another scheduler say nothing of this one's kernels.
constexpr const char* kScheduler = "scheduler 4";

// The scheduler's estimate of registers errs by a few: of its first eight choices one has always
// compiled without spills (tests/compile).
constexpr std::size_t kTries = 8;

}  // namespace

std::string problem_of(const Linear& expr, const Device& device) {
  return to_string(expr) + " on " + std::string(device.name) + ", " + kScheduler;
}

std::optional<Schedule> schedule_called(const std::string& text, const Linear& expr,
                                        const Device& device) {
  for (const Candidate& candidate : candidates(expr, device)) {
    if (candidate.dropped.empty() && to_string(candidate.schedule) == text) {
      return candidate.schedule;
    }
  }
  return std::nullopt;
}

std::vector<Schedule> schedules_to_try(const Linear& expr, const Device& device) {
  std::vector<Schedule> schedules;
  if (const auto kept = stored_plan(problem_of(expr, device)); !kept.empty()) {
    if (const auto schedule = schedule_called(kept, expr, device)) schedules.push_back(*schedule);
  }
  for (const Candidate& candidate : candidates(expr, device)) {
    if (!candidate.dropped.empty() || schedules.size() >= kTries) break;
    schedules.push_back(candidate.schedule);
  }
  return schedules;
}

}  // namespace ladder
