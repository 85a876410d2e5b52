// SPDX-License-Identifier: Apache-2.0
//
// y that leaves a kernel as codes of 8 bits, through the interpreter: exact in every pipeline, with
// every way in which parts of K are added up, and for x of every format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compile.h"
#include "program/batch_case.h"
#include "program/expert_case.h"
#include "program/gate_cases.h"
#include "program/verify_slips.h"

namespace ladder {
namespace {

using testing::BatchCase;
using testing::ExpertCase;
using ::testing::HasSubstr;
using testing::LinearCase;
using ::testing::ThrowsMessage;

/// What another way to make codes would give that is not the right code.
struct Slips {
  int truncated = 0, unsaturated = 0, halves_up = 0, by_the_scale = 0, divided = 0;

  void count(const LinearCase& data) {
    const auto reference = evaluate(data.problem, data.data);
    const Scalar to = data.problem.formats.y;
    for (const double y : reference.y) {
      const auto product = static_cast<float>(y);
      const auto code = nearest_code(to, product);
      if (to == Scalar::s8) {
        truncated += nearest_code(to, std::trunc(product)) != code;
        halves_up += nearest_code(to, std::floor(product + 0.5f)) != code;
        unsaturated += std::fabs(product) > 129;
      } else {
        unsaturated += std::fabs(product) > 480;
      }
      const double result = y * data.data.y_scale;
      by_the_scale += nearest_code(to, static_cast<float>(result * data.data.y_scale)) != code;
      divided += static_cast<float>(result) / data.data.y_scale != product;
    }
  }
};

TEST(Quantise, is_exact_in_every_pipeline) {
  Slips slips;
  testing::expect_exact_in_every_pipeline([](auto&... made) { testing::add_quantised(made...); },
                                          [&](const LinearCase& data) { slips.count(data); });
  // The data tell these apart.
  EXPECT_GT(slips.truncated, 1000);
  EXPECT_GT(slips.unsaturated, 1000);
  EXPECT_GT(slips.halves_up, 100);
  EXPECT_GT(slips.by_the_scale, 1000);
  EXPECT_GT(slips.divided, 100);
}

// The last rows of the weight are no whole tiles, y's rows begin at any byte, and tokens are no
// whole tiles, either.
TEST(Quantise, of_x_of_every_format_and_ragged_shapes_is_exact) {
  struct Kind {
    const char* type;
    std::optional<RoundedX> x = std::nullopt;
  };
  const Kind kinds[] = {{"uint4,group=64,scale=float16,zero=integer"},
                        {"int8,channel,scale=float32"},
                        {"nvfp4"},
                        {"mxfp4"},
                        {"uint4,group=64,scale=float16,zero=midpoint", Scalar::s8},
                        {"int8,channel,scale=float32", Scalar::s8},
                        {"float8_e4m3,channel,scale=float32", Scalar::e4m3},
                        {"float8_e4m3,channel,scale=bfloat16", RoundedX(Scalar::e4m3, true)},
                        {"int4,group=128,scale=float16", Scalar::e4m3}};
  unsigned seed = 0;
  int looked_at = 0;
  for (const char* name : {"h200", "a100", "l40s", "b200", "t4", "mi210", "mi300x", "rx7900xtx"}) {
    const Device& on = device(name);
    for (const auto& [type, x] : kinds) {
      for (const std::int64_t m : {1, 13, 50}) {
        ++seed;
        const auto activation = seed % 2 == 0 || tile_instruction(Scalar::bf16, on) == nullptr
                                    ? Scalar::f16
                                    : Scalar::bf16;
        if (tile_instruction(x ? x->scalar : activation, on) == nullptr) continue;
        Problem problem =
            linear_of(ttype(type), std::array{104, 77, 1, 98}[seed % 4], 256, activation, m);
        problem.set_bias(seed % 3 != 0);
        problem.round_x(x);
        problem.widen_y(x && seed % 2 == 0);  // the bias
        problem.quantise_y(seed / 3 % 2 == 0 ? Scalar::s8 : Scalar::e4m3);
        const Decisions decisions = decide(problem, on);
        const Schedule schedule = best_schedule(decisions);
        if (is_dense(schedule)) continue;
        const Program program = lower(decisions, schedule);
        const auto data = LinearCase::integers(problem, m, seed);
        ASSERT_EQ(data.objection_to(program, schedule), "")
            << to_string(problem) << " on " << name << "; " << to_string(schedule);
        ++looked_at;
      }
    }
  }
  EXPECT_GE(looked_at, 120);
}

TEST(Quantise, of_a_batch_of_windows_and_of_experts_is_that_of_each_product) {
  unsigned seed = 0;
  const auto best = [](const Problem& problem, const Device& on, const auto& check) {
    const Decisions decisions = decide(problem, on);
    const Schedule schedule = best_schedule(decisions);
    if (!is_dense(schedule)) check(lower(decisions, schedule), schedule);
  };
  for (const char* name : {"h200", "mi300x"}) {
    const Device& on = device(name);
    for (Problem problem : testing::expert_types(64, 72, 256)) {
      problem.quantise_y(++seed % 2 == 0 ? Scalar::s8 : Scalar::e4m3);
      const ExpertCase experts = ExpertCase::integers(problem, seed);
      best(experts.problem, on, [&](const Program& program, const Schedule& schedule) {
        std::vector<Argument> memory;
        std::size_t y = 0;
        for (const Buffer& buffer : program.buffers) {
          if (buffer.level != Level::global) continue;
          if (buffer.name == "y") y = memory.size();
          memory.push_back(experts.argument(buffer.name, schedule));
        }
        interpret(program, memory, experts.rows());
        EXPECT_EQ(experts.objection_to(memory[y]), "") << to_string(experts.problem);
      });
      const std::int64_t m = seed % 2 == 0 ? 3 : 133;
      problem.batch = 3, problem.passes = ceil_div(m, problem.m);
      const auto batch = BatchCase::integers(problem, m, seed);
      best(batch.problem, on, [&](const Program& program, const Schedule& schedule) {
        EXPECT_EQ(batch.objection_to(program, schedule), "") << to_string(batch.problem);
      });
    }
  }
  for (const Windows& windows : testing::kinds_of_windows(16)) {
    const std::int64_t m = windows.positions() + windows.positions() / 2;
    Problem problem =
        windows_of(windows, ttype("uint4,channel,scale=float16"), 72, Scalar::f16, 64);
    if (problem.k <= 64) continue;
    problem.passes = ceil_div(m, problem.m);
    problem.quantise_y(Scalar::s8);
    const auto data = BatchCase::integers(problem, m, ++seed);
    best(data.problem, device("h200"), [&](const Program& program, const Schedule& schedule) {
      EXPECT_EQ(data.objection_to(program, schedule), "") << to_string(data.problem);
    });
  }
}

TEST(Quantise, of_gates_is_right) {
  std::vector<std::pair<Problem, Schedule>> gated;
  testing::add_gated(gated, testing::lowered_cases(), device("h200"), 7);
  testing::add_gated(gated, testing::tile_cases(), device("h200"), 7);
  ASSERT_GE(gated.size(), 10U);
  unsigned seed = 0;
  for (auto& [problem, schedule] : gated) {
    problem.quantise_y(++seed % 2 == 0 ? Scalar::s8 : Scalar::e4m3);
    const auto data = LinearCase::integers(problem, problem.m, seed);
    EXPECT_EQ(data.objection_to(lower(decide(problem, device("h200")), schedule), schedule), "")
        << to_string(problem) << "; " << to_string(schedule);
  }
}

TEST(Quantise, of_what_is_no_number_is_nan_or_zero) {
  for (const Scalar to : {Scalar::s8, Scalar::e4m3}) {
    Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 104, 256, Scalar::f16, 16);
    problem.quantise_y(to);
    const Compiled compiled = compile(problem, device("h200"));
    auto data = LinearCase::integers(problem, 16);
    data.data.x[5 * 256 + 9] = to_bits(Scalar::f16, NAN);
    const auto y = data.run(compiled.program, compiled.schedule);
    for (std::size_t n = 0; n < 104; ++n) {
      const double found = y[5 * 104 + n];
      EXPECT_TRUE(to == Scalar::s8 ? found == 0 : std::isnan(found)) << found;
    }
    EXPECT_EQ(data.objection_to(compiled.program, compiled.schedule), "");
  }
}

TEST(Quantise, takes_the_scale_of_the_call) {
  Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 104, 256, Scalar::f16, 16);
  problem.quantise_y(Scalar::s8);
  const Compiled compiled = compile(problem, device("h200"));
  auto data = LinearCase::integers(problem, 16);
  data.data.y_scale = 2;
  const auto exact = data.exact();
  ASSERT_EQ(data.run(compiled.program, compiled.schedule), exact);
  data.data.y_scale = 0.5f;
  const auto y = data.run(compiled.program, compiled.schedule);
  EXPECT_NE(y, exact);
  EXPECT_EQ(y, data.exact());
}

TEST(Quantise, waits_in_a_dependent_launch_for_what_writes_the_scale) {
  const auto constant = [](const Schedule& schedule) {
    Problem problem = linear_of(ttype("uint4,group=64,scale=float16"), 128, 512, Scalar::f16, 8);
    problem.quantise_y(Scalar::s8);
    const Program program = lower(decide(problem, device("h200")), schedule);
    return std::ranges::find(program.buffers, "y_scale", &Buffer::name)->constant;
  };
  DecodeSchedule schedule{.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1};
  EXPECT_TRUE(constant(schedule));
  schedule.dependent_launch = true;
  EXPECT_FALSE(constant(schedule));
}

TEST(Quantise, is_part_of_what_a_problem_says_and_moves) {
  Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 64, 64, Scalar::f16, 8);
  problem.set_bias(true);
  const Problem plain = problem;
  problem.quantise_y(Scalar::s8);
  EXPECT_THAT(to_string(problem), HasSubstr("y[m<=8, n=64] s8 = codes of 1/sy f32 * sum k=64"));
  EXPECT_THAT(to_string(problem), HasSubstr("+ bias[n] f16"));
  EXPECT_EQ(least_bytes(problem, 8), least_bytes(plain, 8) - 8 * 64);
  problem.set_activation_function(Gated::relu);
  EXPECT_THAT(to_string(problem), HasSubstr("s8 = codes of 1/sy f32 * relu of sum k=64"));
  EXPECT_EQ(problem.epilogue,
            (std::vector<EpilogueStep>{Bias{}, ActivationFunction{Gated::relu}, Quantise{}}));
  EXPECT_EQ(refusal(problem), "");
  // Formats of what comes before the codes.
  problem.set_activation(Scalar::bf16);
  EXPECT_EQ(problem.formats, (Formats{Scalar::bf16, Scalar::s8, Scalar::bf16}));
  problem.round_x(Scalar::e4m3);
  EXPECT_EQ(problem.activation(), Scalar::bf16);
  problem.widen_y();
  EXPECT_EQ(problem.formats, (Formats{Scalar::e4m3, Scalar::s8, Scalar::f32}));
  EXPECT_EQ(problem.activation(), Scalar::f16);
  EXPECT_EQ(refusal(problem), "");
  problem.quantise_y({});
  EXPECT_TRUE(problem.wide_y());
}

TEST(Quantise, is_refused_by_name_where_it_has_no_meaning_or_no_kernel) {
  const auto made = [](const auto& change) {
    Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 64, 64, Scalar::f16, 8);
    problem.quantise_y(Scalar::s8);
    change(problem);
    return problem;
  };
  const auto checked = [&](const auto& change) { return [=] { check(made(change)); }; };
  EXPECT_NO_THROW(checked([](Problem&) {})());
  EXPECT_THAT(checked([](Problem& p) { p.formats.y = Scalar::f16; }),
              ThrowsMessage<InvalidArgument>("y is quantised to f16, not to s8 or e4m3"));
  EXPECT_THAT(checked([](Problem& p) { p.formats.y = Scalar::e4m3fnuz; }),
              ThrowsMessage<InvalidArgument>("y is quantised to e4m3fnuz, not to s8 or e4m3"));
  EXPECT_THAT(checked([](Problem& p) { p.formats.bias = Scalar::s8; }),
              ThrowsMessage<InvalidArgument>("the bias is s8, not f16, bf16 or f32"));
  EXPECT_THAT(
      checked([](Problem& p) { p.epilogue.clear(); }),
      ThrowsMessage<InvalidArgument>("y is s8, not f16, bf16 or f32, and nothing quantises it"));
  const auto refused = [&](const auto& change) { return refusal(made(change)); };
  EXPECT_EQ(refused([](Problem& p) { p.set_residual(true); }),
            "kernels add no residual to y of 8 bits");
  EXPECT_EQ(refused([](Problem& p) { p.formats.bias = Scalar::f32; }),
            "x is f16, and the bias f32");
  EXPECT_THAT(refused([](Problem& p) { p.epilogue.emplace_back(Bias{}); }),
              HasSubstr("a residual and the scale of y in this order"));
}

TEST(Quantise, of_tiles_that_do_not_fit_is_found) {
  Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 128, 256, Scalar::f16, 8);
  problem.quantise_y(Scalar::e4m3);
  const Program p = compile(problem, device("h200")).program;
  using testing::expect, testing::layout;
  expect<ToCodes>(p, "are laid out differently", [](Program& p, ToCodes& i) {
    layout(p, i.to) = layout(p, i.to) * local({1, 1, 2});
  });
  expect<ToCodes>(p, "codes is f16, not s8 or e4m3",
                  [](Program& p, ToCodes& i) { p.registers[i.to].scalar = Scalar::f16; });
  expect<ToCodes>(p, "not f32",
                  [](Program& p, ToCodes& i) { p.registers[i.scale].scalar = Scalar::u32; });
  expect<ToCodes>(p, "is not one number", [](Program& p, ToCodes& i) {
    layout(p, i.scale) = layout(p, i.scale) * local({1, 1, 2});
  });
}

}  // namespace
}  // namespace ladder
