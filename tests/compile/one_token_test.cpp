// SPDX-License-Identifier: Apache-2.0
//
// One token of 1 and 2 bits (layout/digits.h): of the first choices one compiles without spills,
// whatever the scales, groups and borders, and it takes digits wherever they serve the type.
#include <gtest/gtest.h>

#include <string>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "expr/constructors.h"
#include "pipelines/schedule.h"

namespace ladder {
namespace {

constexpr int kTries = 8;

/// The first choice that compiles without spills.
DecodeSchedule first_without_spills(const Problem& problem, const Device& device) {
  const auto choices = candidates(decide(problem, device));
  std::string spilled;
  for (int i = 0; i < kTries && choices[i].dropped.empty(); ++i) {
    const auto& schedule = std::get<DecodeSchedule>(choices[i].schedule);
    const auto binary =
        cuda::compile(compile(decide(problem, device), schedule).source, device.architecture);
    if (binary.spill_bytes == 0 && binary.stack_bytes == 0) return schedule;
    spilled += "\n  " + to_string(schedule);
  }
  ADD_FAILURE() << to_string(problem) << ": all spill:" << spilled;
  return std::get<DecodeSchedule>(choices.front().schedule);
}

struct Case {
  const char* type;
  bool digits;
};

class OneToken : public ::testing::TestWithParam<Case> {};

TEST_P(OneToken, compiles_on_every_path_to_its_kernel) {
  const auto [type, digits] = GetParam();
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    const bool ragged = activation == Scalar::bf16;
    Problem problem =
        linear_of(ttype(type), ragged ? 1000 : 28672, ragged ? 1032 : 8192, activation, 1);
    problem.permuted_columns = ragged, problem.set_bias(ragged);
    for (const char* name : {"h200", "a100", "t4"}) {
      if (tile_instruction(activation, device(name)) == nullptr) continue;
      const auto chosen = first_without_spills(problem, device(name));
      EXPECT_EQ(chosen.route == Route::digits, digits) << to_string(chosen);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, OneToken,
    ::testing::Values(Case{"uint1,group=32,scale=e8m0", true}, Case{"uint2,channel", true},
                      Case{"ternary,group=128,scale=float16", true},
                      Case{"uint3,group=128,scale=float16", false},
                      Case{"int2,group=64,scale=float32", true},
                      Case{"int1,group=128,scale=float16", true},
                      Case{"uint2,group=16,scale=float16", false},
                      Case{"uint2,group=64,scale=bfloat16,zero=integer", false}),
    [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
