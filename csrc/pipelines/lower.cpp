// SPDX-License-Identifier: Apache-2.0
#include "pipelines/lower.h"

#include "base/error.h"

namespace ladder {

Workspace workspace_of(const Problem& problem, const Schedule& schedule) {
  return std::visit([&](const auto& s) { return workspace_of(problem, s); }, schedule);
}

Program lower(const Decisions& decisions, const DenseSchedule&) {
  fail<Unsupported>(decisions.problem.m, " tokens are multiplied by a library");
}

Program lower(const Decisions& decisions, const Schedule& schedule) {
  return std::visit([&](const auto& s) { return lower(decisions, s); }, schedule);
}

}  // namespace ladder
