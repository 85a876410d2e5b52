// SPDX-License-Identifier: Apache-2.0
//
// Of the first choices of a problem one compiles, as a session needs it. Internal to the tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "pipelines/schedule.h"

namespace ladder::testing {

constexpr std::size_t kTries = 8;

inline void expect_a_kernel(const Problem& problem, const Device& device) {
  const Decisions decisions = decide(problem, device);
  const auto choices = candidates(decisions);
  std::string spilled;
  for (std::size_t i = 0; i < kTries && choices[i].dropped.empty(); ++i) {
    const auto source = compile(decisions, choices[i].schedule).source;
    const auto why = rejection(cuda::compile(source, device.architecture));
    if (why.empty()) return;
    spilled += "\n  " + to_string(choices[i].schedule) + ": " + why;
  }
  ADD_FAILURE() << to_string(problem) << " on " << device.name << ": all are rejected:" << spilled;
}

}  // namespace ladder::testing
