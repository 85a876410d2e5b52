// SPDX-License-Identifier: Apache-2.0
#include "pipelines/dense/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "pipelines/decode/schedule.h"

namespace ladder {
namespace {

constexpr std::string_view kName = "dense";

// How far the kernels are from the rates of the row; fitted with Costs::Dense.
constexpr double kShort = 1.05;

}  // namespace

std::string to_string(const DenseSchedule&) { return std::string(kName); }

std::optional<DenseSchedule> dense_schedule_of(std::string_view text) {
  return text == kName ? std::optional(DenseSchedule{}) : std::nullopt;
}

std::string objection(const DenseSchedule&, const Decisions& decisions) {
  const auto m = decisions.problem.m;
  if (decisions.problem.has_bytes_of_x())
    return "a dense product of activations that were rounded to bytes";
  if (decisions.problem.has_items()) return "a dense product of one weight and of rows as they are";
  return m > kMostDecodeTokens
             ? ""
             : joined("a dense product of ", m, " tokens, of more than ", kMostDecodeTokens);
}

Cost cost(const DenseSchedule&, const Decisions& decisions) {
  const auto& places = decisions.whole.places;
  const auto once = std::ranges::find(places, ConvertPlace::once, &ConvertCost::place);
  LADDER_CHECK(once != places.end(), "no cost of converting once");
  Cost out{};
  out.memory_seconds = once->global_seconds + once->before_seconds;
  out.issue_seconds = once->arithmetic_seconds;
  out.shared_seconds = once->shared_seconds;
  const Costs::Dense& costs = decisions.device->costs.dense;
  out.fixed_seconds = costs.launch_seconds;
  out.seconds = std::max(kShort * once->seconds + costs.launch_seconds, costs.least_seconds);
  return out;
}

std::vector<DenseSchedule> dense_space(const Decisions& decisions) {
  if (!objection(DenseSchedule{}, decisions).empty()) return {};
  return {DenseSchedule{}};
}

}  // namespace ladder
