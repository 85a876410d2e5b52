// SPDX-License-Identifier: Apache-2.0
//
// No kernel of ours: the weight is dequantised once, and a library multiplies.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expr/problem.h"
#include "pipelines/cost.h"
#include "schedule/decisions.h"

namespace ladder {

struct DenseSchedule {
  bool operator==(const DenseSchedule&) const = default;
};

// What every pipeline has (pipelines/schedule.h).
/// "dense".
std::string to_string(const DenseSchedule& schedule);
std::optional<DenseSchedule> dense_schedule_of(std::string_view text);
/// Up to the tokens of decode kernels it is no candidate: the weight in 16 bits is written and read
/// again, where they read it once in its own.
std::string objection(const DenseSchedule& schedule, const Decisions& decisions);
Cost cost(const DenseSchedule& schedule, const Decisions& decisions);
std::vector<DenseSchedule> dense_space(const Decisions& decisions);

}  // namespace ladder
