// SPDX-License-Identifier: Apache-2.0
//
// What a layer of a chain runs: of the first choices one compiles without spills, as where kernels
// are launched by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "expr/constructors.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

class DependentLaunch : public ::testing::TestWithParam<const char*> {};

TEST_P(DependentLaunch, has_a_kernel_without_spills_that_waits) {
  for (const char* name : {"h200", "b200"}) {
    const Device& row = device(name);
    for (std::int64_t m : {1, 8, 16}) {
      Problem problem = linear_of(ttype(GetParam()), 4096, m == 8 ? 4000 : 4096, Scalar::f16, m);
      problem.set_bias(true), problem.permuted_columns = m == 8;
      const Decisions decisions = decide(problem, row);
      bool found = false;
      for (const Schedule& schedule : schedules_to_try(decisions, true)) {
        const auto source = compile(decisions, schedule).source;
        ASSERT_THAT(source, ::testing::HasSubstr("{  // dependent_wait"));
        found = rejection(cuda::compile(source, row.architecture)).empty();
        if (found) break;
      }
      EXPECT_TRUE(found) << to_string(problem) << " on " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, DependentLaunch,
    ::testing::Values("uint1,group=64,scale=float16", "uint4,group=128,scale=float16",
                      "nf4,group=64,scale=float16", "uint4,group=32,scale=float16,zero=integer",
                      "uint3,group=32,scale=float16", "float8_e4m3,channel,scale=float16", "mxfp4"),
    [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
