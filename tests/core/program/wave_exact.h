// SPDX-License-Identifier: Apache-2.0
// What a program of waves computes, without a device. Internal to the tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "program/linear_case.h"
#include "program/wave_cases.h"

namespace ladder::testing {

/// On integers to the bit, where weights are not rounded; well formed, in as much shared memory as
/// the schedule says.
inline void expect_exact(const Problem& problem, const WaveSchedule& schedule, const Device& device,
                         unsigned seed) {
  const Program program = lower(decide(problem, device), schedule);
  EXPECT_EQ(program.threads, schedule.threads());
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  ASSERT_NO_THROW(verify(program, device.shared_per_block_bytes)) << to_string(problem);
  const auto data = LinearCase::integers(problem, problem.m, seed);
  const auto y = data.run(program, schedule);
  const auto wanted = data.exact();
  const auto reference = evaluate(problem, data.data);
  const bool rounded = decoding_error(problem) > 0 || (problem.weight.element != nullptr &&
                                                       problem.weight.element->exponent_bits > 4);
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!rounded) {
      ASSERT_EQ(y[i], wanted[i]) << to_string(problem) << "; " << to_string(schedule) << "; " << i;
    } else if (std::fabs(reference.y[i]) <= data.largest()) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i)) << to_string(problem);
    }
  }
}

}  // namespace ladder::testing
