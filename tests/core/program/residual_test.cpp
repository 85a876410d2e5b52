// SPDX-License-Identifier: Apache-2.0
//
// A residual that is added where the sums are made, through the interpreter: exact in every
// pipeline and with every way in which parts of K are added up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compile.h"
#include "program/batch_case.h"
#include "program/gate_cases.h"

namespace ladder {
namespace {

using testing::BatchCase;
using ::testing::HasSubstr;
using testing::LinearCase;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(Residual, is_exact_in_every_pipeline) {
  testing::expect_exact_in_every_pipeline([](auto&... made) { testing::add_residuals(made...); },
                                          [](const LinearCase&) {});
}

// The last rows of the weight are no whole tiles, y's rows begin between words, and tokens are no
// whole tiles, either.
TEST(Residual, of_ragged_shapes_and_all_kinds_of_types_is_exact) {
  constexpr const char* kTypes[] = {"uint4,group=64,scale=float16,zero=integer",
                                    "int3,group=32,scale=bfloat16",
                                    "float6_e3m2,group=64,scale=float16",
                                    "nvfp4",
                                    "mxfp4",
                                    "uint1,channel,scale=float16",
                                    "int8,channel,scale=float16"};
  unsigned seed = 0;
  for (const char* name : {"h200", "a100", "b200", "mi300x", "rx7900xtx"}) {
    for (const char* type : kTypes) {
      for (const std::int64_t m : {1, 13, 50}) {
        ++seed;
        const auto activation = seed % 2 == 0 ? Scalar::f16 : Scalar::bf16;
        Problem problem =
            linear_of(ttype(type), std::array{104, 77, 1}[seed % 3], 256, activation, m);
        problem.set_bias(seed % 2 == 0);
        problem.set_residual(true);
        const Compiled compiled = compile(problem, device(name));
        const auto data = LinearCase::integers(problem, m, seed);
        ASSERT_EQ(data.objection_to(compiled.program, compiled.schedule), "")
            << to_string(problem) << " on " << name << "; " << to_string(compiled.schedule);
      }
    }
  }
}

TEST(Residual, of_rounded_activations_is_exact) {
  for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
    Problem problem =
        linear_of(ttype("uint4,group=64,scale=float16,zero=midpoint"), 104, 256, Scalar::f16, 96);
    problem.set_bias(true);
    problem.round_x(to);
    problem.set_residual(true);
    const Compiled compiled = compile(problem, device("h200"));
    const auto data = LinearCase::integers(problem, 83, 3);
    EXPECT_EQ(data.objection_to(compiled.program, compiled.schedule), "") << to_string(problem);
  }
}

TEST(Residual, of_a_batch_is_that_of_each_product) {
  unsigned seed = 0;
  for (const char* name : {"h200", "mi300x"}) {
    const Device& on = device(name);
    for (const std::int64_t rows : {8, 64}) {
      for (Problem problem : testing::expert_types(rows, 72, 256)) {
        const std::int64_t m = ++seed % 2 == 0 ? 3 : 2 * rows + 5;
        problem.rows = Dense{};
        problem.batch = 3, problem.passes = ceil_div(m, rows);
        problem.set_residual(true);
        const auto data = BatchCase::integers(problem, m, seed);
        const Decisions decisions = decide(data.problem, on);
        const Schedule schedule = best_schedule(decisions);
        ASSERT_EQ(data.objection_to(lower(decisions, schedule), schedule), "")
            << to_string(data.problem) << " on " << name << "; " << to_string(schedule);
      }
    }
  }
}

TEST(Residual, of_windows_is_that_of_their_positions) {
  unsigned seed = 0;
  int looked_at = 0;
  for (const std::int64_t channels : {13, 24}) {
    for (const Windows& windows : testing::kinds_of_windows(channels)) {
      if (windows.columns() <= 64) continue;  // one k-tile
      const auto m = 2 * windows.positions() + 1;
      Problem problem = windows_of(windows, ttype("uint4"), 72, Scalar::f16, 32);
      problem.passes = ceil_div(m, problem.m);
      problem.set_bias(++seed % 2 == 0);
      problem.set_residual(true);
      EXPECT_EQ(refusal(problem), "");
      const auto data = BatchCase::integers(problem, m, seed);
      for (const Schedule& schedule :
           testing::expert_schedules(data.problem, device("h200"), seed % 2 == 0)) {
        if (++looked_at % 3 != 0) continue;
        const Program program = lower(decide(data.problem, device("h200")), schedule);
        ASSERT_EQ(data.objection_to(program, schedule), "")
            << to_string(data.problem) << "; " << to_string(schedule);
      }
    }
  }
  EXPECT_GE(looked_at, 30);
}

TEST(Residual, of_other_tokens_or_rows_is_wrong) {
  Problem problem = linear_of(ttype("uint4,group=64,scale=float16"), 104, 256, Scalar::f16, 16);
  problem.set_residual(true);
  const Compiled compiled = compile(problem, device("h200"));
  const auto data = LinearCase::integers(problem, 16, 1);
  ASSERT_EQ(data.objection_to(compiled.program, compiled.schedule), "");
  for (const std::ptrdiff_t by : {1, 104}) {
    auto wrong = data;
    std::ranges::rotate(wrong.data.residual, wrong.data.residual.begin() + by);
    const auto y = wrong.run(compiled.program, compiled.schedule);
    EXPECT_NE(y, data.exact()) << by;
    EXPECT_EQ(y, wrong.exact()) << by;
  }
}

// Any kernel that a plan has for a layer serves it with a residual, too.
TEST(Residual, has_the_schedules_that_its_layer_has) {
  int looked_at = 0;
  for (const char* name : {"a100", "h200", "b200", "mi300x"}) {
    for (const std::int64_t m : {1, 8, 16, 64, 512}) {
      Problem problem = linear_of(ttype("uint4,group=128,scale=float16,zero=midpoint"), 4096, 4096,
                                  Scalar::f16, m);
      const Decisions plain = decide(problem, device(name));
      const Schedule schedule = best_schedule(plain);
      if (is_dense(schedule)) continue;  // a library's product
      problem.set_residual(true);
      const Decisions decisions = decide(problem, device(name));
      EXPECT_EQ(objection(schedule, decisions), "") << name << " " << m;
      EXPECT_THAT(to_string(lower(decisions, schedule)), HasSubstr("residual")) << name << " " << m;
      EXPECT_THAT(to_string(lower(plain, schedule)), Not(HasSubstr("residual")));
      ++looked_at;
    }
  }
  EXPECT_GE(looked_at, 16);
}

TEST(Residual, waits_in_a_dependent_launch_for_what_writes_it) {
  const auto constant = [](const Schedule& schedule) {
    Problem problem = linear_of(ttype("uint4,group=64,scale=float16"), 128, 512, Scalar::f16, 8);
    problem.set_residual(true);
    const Program program = lower(decide(problem, device("h200")), schedule);
    return std::ranges::find(program.buffers, "residual", &Buffer::name)->constant;
  };
  DecodeSchedule schedule{.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1};
  EXPECT_TRUE(constant(schedule));
  schedule.dependent_launch = true;
  EXPECT_FALSE(constant(schedule));
}

TEST(Residual, is_part_of_what_a_problem_says_and_moves) {
  Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 64, 64, Scalar::f16, 8);
  const auto plain = to_string(problem);
  const auto bytes = least_bytes(problem, 8);
  problem.set_residual(true);
  EXPECT_THAT(to_string(problem), HasSubstr("y[m<=8, n=64] f16 = residual[m, n] f16 + sum k=64"));
  EXPECT_EQ(least_bytes(problem, 8), bytes + 8 * 64 * 2);
  problem.set_activation_function(Gated::relu);
  problem.set_bias(true);
  EXPECT_THAT(to_string(problem), HasSubstr("= residual[m, n] f16 + relu of sum k=64"));
  EXPECT_EQ(problem.epilogue,
            (std::vector<EpilogueStep>{Bias{}, ActivationFunction{Gated::relu}, Residual{}}));
  EXPECT_EQ(refusal(problem), "");
  problem.set_bias(false);
  problem.set_activation_function(std::nullopt);
  problem.set_residual(false);
  EXPECT_EQ(to_string(problem), plain);
}

TEST(Residual, is_refused_by_name_where_kernels_add_none) {
  const auto refused = [](const auto& change) {
    Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 64, 64, Scalar::f16, 8);
    problem.set_residual(true);
    change(problem);
    return refusal(problem);
  };
  EXPECT_EQ(refused([](Problem& p) { p.set_gate(Gating{}); }),
            "kernels add no residual to a product of gate and up");
  EXPECT_EQ(refused([](Problem& p) {
              p.rows = RoutedRows{2, 0, 1024};
            }),
            "kernels add no residual to rows of experts");
  EXPECT_EQ(refused([](Problem& p) { p.round_x(Scalar::s8), p.widen_y(); }),
            "kernels add no residual to y of f32");
  EXPECT_EQ(
      refused([](Problem& p) { p.epilogue.emplace_back(Bias{}); }),
      "kernels take a second scale, scales of tokens, a bias, a gate, an activation function, "
      "a residual and the scale of y in this order");
}

}  // namespace
}  // namespace ladder
