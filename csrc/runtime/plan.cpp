// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "compile.h"
#include "pipelines/diversified.h"
#include "pipelines/pruned.h"
#include "runtime/kernels.h"

namespace ladder {
namespace {

// Part of the name of a plan: measurements of another scheduler say nothing of this one's kernels.
constexpr const char* kScheduler = "scheduler 12";

// The scheduler's estimate of registers errs by a few. Of its first eight choices one does not
// spill in any case that tests/compile has; there may be others.
constexpr std::size_t kTries = 16;

// How often others are compiled for those that were rejected, where some were not. After the first
// time hardly any are.
constexpr int kAgain = 2;

/// What schedules_to_measure() compiles, in order, without dense products.
std::vector<Schedule> guessed(const Decisions& decisions, bool dependent_launch,
                              std::size_t count) {
  if (count == 1) {
    auto tries = schedules_to_try(decisions, dependent_launch);
    tries.erase(std::ranges::find_if(tries, is_dense), tries.end());
    return tries;
  }
  auto all = candidates(decisions, dependent_launch);
  if (all.empty()) return {};
  const double best_seconds = all.front().cost.seconds;
  std::vector<Schedule> out;
  for (const Candidate& candidate :
       diversified(pruned(std::move(all), decisions, best_seconds), count)) {
    if (!candidate.dropped.empty()) break;
    if (!is_dense(candidate.schedule)) out.push_back(candidate.schedule);
  }
  return out;
}

}  // namespace

std::string plan_key(const Problem& problem, const Device& device, bool dependent_launch) {
  const std::string_view machine = device.found.empty() ? device.name : device.found;
  return to_string(problem) + " on " + std::string(machine) + ", " + kScheduler +
         (dependent_launch && device.dependent_launch() ? ", dependent launch" : "") +
         (device.unproven ? ", unproven" : "");
}

std::optional<Schedule> schedule_called(const std::string& text, const Decisions& decisions,
                                        bool dependent_launch) {
  const auto schedule = schedule_of(text);
  if (!schedule) return std::nullopt;
  // The text may be anybody's: only schedules of the space are looked at further.
  const auto all = space(decisions, dependent_launch);
  const bool known = std::ranges::find(all, *schedule) != all.end();
  return known && objection(*schedule, decisions).empty() ? schedule : std::nullopt;
}

std::optional<Plan> plan_of(const Decisions& decisions, bool dependent_launch) {
  const auto kept = stored_plan(plan_key(decisions.problem, *decisions.device, dependent_launch));
  if (!kept) return std::nullopt;
  const auto schedule = schedule_called(kept->schedule, decisions, dependent_launch);
  if (!schedule) return std::nullopt;
  return Plan{*schedule, kept->measured};
}

std::vector<Schedule> schedules_to_try(const Decisions& decisions, bool dependent_launch) {
  return schedules_to_try(candidates(decisions, dependent_launch));
}

std::vector<Schedule> schedules_to_try(std::vector<Candidate> all) {
  std::vector<Schedule> schedules;
  // Those that are alike often spill alike.
  for (const Candidate& candidate : diversified(std::move(all), kTries)) {
    if (!candidate.dropped.empty() || schedules.size() == kTries) break;
    schedules.push_back(candidate.schedule);
  }
  return schedules;
}

std::vector<Schedule> schedules_to_measure(const Decisions& decisions, bool dependent_launch,
                                           std::size_t count, Deadline deadline) {
  const auto guesses = guessed(decisions, dependent_launch, count);
  std::vector<Schedule> kept;
  auto next = guesses.begin();
  const auto compile_next = [&](std::size_t more) {
    std::vector<Schedule> schedules;
    std::vector<std::string> sources;
    for (; next != guesses.end() && sources.size() < more; ++next) {
      try {
        sources.push_back(compile(decisions, *next).source);
        schedules.push_back(*next);
      } catch (const Unsupported&) {
        // Only emitting shows some of the limits of a device.
      }
    }
    compile_missing(sources, *decisions.device, deadline);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (!known_to_be_rejected(sources[i], *decisions.device)) kept.push_back(schedules[i]);
    }
  };
  compile_next(count);
  // Where all are rejected, a session would try the others one by one, in the caller's thread.
  const auto last = guesses.begin() + std::min(guesses.size(), std::max(count, kTries));
  for (int again = 0; kept.size() < count && (again < kAgain || (kept.empty() && next < last));
       ++again) {
    compile_next(2 * (count - kept.size()));
  }
  kept.resize(std::min(kept.size(), count));
  // It needs no compiler of ours, and only a measurement tells where it begins to be faster.
  if (const auto found = dense_space(decisions); !found.empty()) kept.emplace_back(found.front());
  return kept;
}

}  // namespace ladder
