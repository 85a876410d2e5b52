// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the V100, whose warps multiply by quad pairs, through the interpreter.
#include <gtest/gtest.h>

#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/wave_cases.h"

namespace ladder {
namespace {

using testing::LinearCase;

const Device& v100() { return device("v100"); }

void expect_right(const Problem& problem, const Schedule& schedule, unsigned seed) {
  const Program program = lower(decide(problem, v100()), schedule);
  const auto what = to_string(problem) + "; " + to_string(schedule);
  ASSERT_NO_THROW(verify(program, v100().shared_per_block_bytes)) << what;
  const auto data = LinearCase::integers(problem, 1 + seed * 5 % problem.m, seed);
  std::vector<std::uint8_t> bytes;
  for (const double value : data.run(program, schedule)) {
    const auto bits = data.bits(value);
    bytes.push_back(bits & 0xff), bytes.push_back(bits >> 8);
  }
  ASSERT_EQ(data.objection_to(bytes), "") << what;
}

TEST(Volta, multiplies_by_waves_of_every_shape_exactly) {
  unsigned seed = 0, taken = 0;
  for (const char* type : testing::kKindsOfTypes) {
    for (const auto& shape : testing::kWaveShapes) {
      if (++seed % 3 != 0) continue;
      for (const Route route : {Route::multiply_add, Route::in_place}) {
        const auto reduction = seed % 2 == 0 ? Reduction::none : Reduction::ordered;
        for (auto [problem, schedule] :
             testing::wave_case(shape, ttype(type), Scalar::f16, reduction, route, v100())) {
          problem.set_bias(seed % 2 == 0), problem.permuted_columns = seed % 5 == 0;
          expect_right(problem, schedule, seed);
          ++taken;
        }
      }
    }
  }
  EXPECT_GE(taken, 40U);
}

TEST(Volta, has_a_kernel_for_every_kind_of_type_and_the_first_choice_is_right) {
  unsigned seed = 0;
  for (const char* type : testing::kKindsOfTypes) {
    for (const std::int64_t m : {1, 16, 100}) {
      Problem problem =
          linear_of(ttype(type), m == 16 ? 130 : 100, m == 16 ? 1024 : 328, Scalar::f16, m);
      problem.set_bias(++seed % 2 == 0), problem.permuted_columns = seed % 3 == 0;
      const auto schedule = best_schedule(decide(problem, v100()));
      EXPECT_FALSE(is_dense(schedule)) << type << ", " << m;
      if (!is_dense(schedule)) expect_right(problem, schedule, seed);
    }
  }
}

}  // namespace
}  // namespace ladder
