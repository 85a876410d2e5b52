// SPDX-License-Identifier: Apache-2.0
#include "pipelines/schedule.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "pipelines/spelling.h"

namespace ladder {
namespace {

/// `of` the schedule of a kernel.
template <class Of>
auto of_kernel(const Schedule& schedule, const Of& of) {
  if (const auto* tiles = std::get_if<TileSchedule>(&schedule)) return of(*tiles);
  if (const auto* waves = std::get_if<WaveSchedule>(&schedule)) return of(*waves);
  const auto* decode = std::get_if<DecodeSchedule>(&schedule);
  LADDER_CHECK(decode != nullptr, to_string(schedule), " has no kernel");
  return of(*decode);
}

}  // namespace

std::string to_string(const Schedule& schedule) {
  return std::visit([](const auto& s) { return to_string(s); }, schedule);
}

std::optional<Schedule> schedule_of(std::string_view text) {
  if (const auto decode = decode_schedule_of(text)) return *decode;
  if (const auto tiles = tile_schedule_of(text)) return *tiles;
  if (const auto waves = wave_schedule_of(text)) return *waves;
  if (const auto dense = dense_schedule_of(text)) return *dense;
  return std::nullopt;
}

Route route_of(const Schedule& schedule) {
  return of_kernel(schedule, [](const auto& s) { return s.route; });
}

CtaGrid grid_of(const Schedule& schedule, const Problem& problem) {
  return of_kernel(schedule, [&](const auto& s) { return grid_of(s, problem); });
}

std::string objection(const Schedule& schedule, const Decisions& decisions) {
  return std::visit([&](const auto& s) { return objection(s, decisions); }, schedule);
}

Cost cost(const Schedule& schedule, const Decisions& decisions) {
  return std::visit([&](const auto& s) { return cost(s, decisions); }, schedule);
}

std::vector<Schedule> space(const Decisions& decisions, bool dependent_launch) {
  if (decisions.whole.core.instruction->by_waves()) {
    const auto waves = wave_space(decisions);
    std::vector<Schedule> all(waves.begin(), waves.end());
    for (const DenseSchedule& dense : dense_space(decisions)) all.emplace_back(dense);
    return all;
  }
  const bool dependent = dependent_launch && decisions.device->dependent_launch();
  const auto tiles = tile_space(decisions, dependent);
  if (decisions.problem.has_bytes_of_x() || decisions.problem.windows() != nullptr)
    return {tiles.begin(), tiles.end()};
  const auto decode = decode_space(decisions, dependent);
  std::vector<Schedule> all(decode.begin(), decode.end());
  all.insert(all.end(), tiles.begin(), tiles.end());
  for (const DenseSchedule& dense : dense_space(decisions)) all.emplace_back(dense);
  return all;
}

namespace {

/// The same for the numbers of items that are as likely as the expected: a schedule whose CTAs fill
/// the device exactly once takes twice as long for an item more.
std::vector<Decisions> likely(const Decisions& decisions) {
  if (!decisions.problem.experts() || decisions.problem.experts()->deviation == 0)
    return {decisions};
  std::vector<Decisions> out(3, decisions);
  const auto [items, deviation, bytes] = *decisions.problem.experts();
  out[0].problem.experts()->items = std::max<std::int64_t>(items - deviation, 1);
  out[2].problem.experts()->items = items + deviation;
  return out;
}

Cost mean_cost(const Schedule& schedule, const std::vector<Decisions>& likely) {
  Cost out{};
  for (const Decisions& decisions : likely) {
    const Cost one = cost(schedule, decisions);
    out.seconds += one.seconds, out.memory_seconds += one.memory_seconds;
    out.issue_seconds += one.issue_seconds, out.shared_seconds += one.shared_seconds;
    out.fixed_seconds += one.fixed_seconds;
  }
  const auto count = static_cast<double>(likely.size());
  for (double* seconds : {&out.seconds, &out.memory_seconds, &out.issue_seconds,
                          &out.shared_seconds, &out.fixed_seconds}) {
    *seconds /= count;
  }
  return out;
}

}  // namespace

std::vector<Candidate> candidates(const Decisions& decisions, bool dependent_launch) {
  std::vector<Candidate> all;
  const auto numbers = likely(decisions);
  for (const Schedule& s : space(decisions, dependent_launch)) {
    all.push_back({s, mean_cost(s, numbers), objection(s, decisions)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    if (a.dropped.empty() != b.dropped.empty()) return a.dropped.empty();
    return a.cost.seconds < b.cost.seconds;
  });
  return all;
}

Schedule best_schedule(const Decisions& decisions, bool dependent_launch) {
  const auto all = candidates(decisions, dependent_launch);
  if (!all.empty() && all.front().dropped.empty()) return all.front().schedule;
  std::ostringstream why;
  for (const auto& candidate : all) {
    why << "\n  " << to_string(candidate.schedule) << ": " << candidate.dropped;
  }
  fail<Unsupported>("no schedule for ", to_string(decisions.problem), " on ",
                    decisions.device->name, ":", why.str());
}

}  // namespace ladder
