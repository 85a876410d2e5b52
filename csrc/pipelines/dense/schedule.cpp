// SPDX-License-Identifier: Apache-2.0
#include "pipelines/dense/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/joined.h"
#include "pipelines/decode/schedule.h"

namespace ladder {
namespace {

constexpr std::string_view kName = "dense";

// Fitted to 64 to 512 tokens of four layers and 544 to 4096 of three on two H200s
// (benchmarks/results/peers.md, sweep.md): launches of the kernels, and how far they are from the
// rates of the row. A library takes some 9 us for the
// smallest.
constexpr double kLaunches = 5e-6, kShort = 1.05, kLeast = 11e-6;

}  // namespace

std::string to_string(const DenseSchedule&) { return std::string(kName); }

std::optional<DenseSchedule> dense_schedule_of(std::string_view text) {
  return text == kName ? std::optional(DenseSchedule{}) : std::nullopt;
}

std::string objection(const DenseSchedule&, const Decisions& decisions) {
  const auto m = decisions.problem.m;
  if (decisions.problem.has_bytes_of_x())
    return "a dense product of activations that were rounded to bytes";
  if (decisions.problem.experts()) return "a dense product of one weight, not of experts";
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
  out.fixed_seconds = kLaunches;
  out.seconds = std::max(kShort * once->seconds + kLaunches, kLeast);
  return out;
}

std::vector<DenseSchedule> dense_space(const Decisions& decisions) {
  if (!objection(DenseSchedule{}, decisions).empty()) return {};
  return {DenseSchedule{}};
}

}  // namespace ladder
