// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the V100, whose warps multiply by quad pairs, through the interpreter.
#include <gtest/gtest.h>

#include "program/kinds_of_types.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using testing::LinearCase;

const Device& v100() { return device("v100"); }

void expect_right(const Problem& problem, const Schedule& schedule, unsigned seed) {
  const Program program = lower(decide(problem, v100()), schedule);
  const auto what = to_string(problem) + "; " + to_string(schedule);
  ASSERT_NO_THROW(verify(program, v100().shared_per_block_bytes)) << what;
  const auto data = LinearCase::integers(problem, 1 + seed * 5 % problem.m, seed);
  ASSERT_EQ(data.objection_to(program, schedule), "") << what;
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
