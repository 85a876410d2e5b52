// SPDX-License-Identifier: Apache-2.0
//
// Functions of sums where the sums are made, through the interpreter: right in every pipeline and
// with every way in which parts of K are added up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compile.h"
#include "program/gate_cases.h"

namespace ladder {
namespace {

using testing::expect_right;
using ::testing::HasSubstr;
using testing::LinearCase;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(ActivationFunction, is_right_in_every_pipeline) {
  const auto check = [](const char* name, const auto& cases, std::size_t least) {
    const Device& on = device(name);
    std::vector<std::pair<Problem, Schedule>> activated;
    testing::add_activated(activated, cases, on);
    ASSERT_GE(activated.size(), least) << name;
    unsigned seed = 0;
    std::set<Gated> functions;
    for (const auto& [problem, schedule] : activated) {
      ++seed;
      const auto m = seed % 2 == 0 ? problem.m : 1 + seed % problem.m;
      // Numbers about 1, where functions bend, and large ones, where few are right by chance.
      expect_right(problem, schedule, on,
                   seed % 3 == 0 ? LinearCase::integers(problem, m, seed)
                                 : LinearCase::reals(problem, m, seed));
      functions.insert(*problem.activation_function());
    }
    EXPECT_EQ(functions.size(), testing::kFunctions.size()) << name;
  };
  check("h200", testing::lowered_cases(), 60);
  check("h200", testing::tile_cases(), 60);
  check("mi300x", testing::wave_cases(device("mi300x"), 3), 12);
}

TEST(ActivationFunction, of_integers_is_exact) {
  for (const std::int64_t m : {1, 16, 64}) {
    Problem problem =
        linear_of(ttype("uint4,group=64,scale=float16,zero=integer"), 104, 256, Scalar::f16, m);
    problem.set_bias(true);
    problem.set_activation_function(Gated::relu);
    const Compiled compiled = compile(problem, device("h200"));
    const auto data = LinearCase::integers(problem, m, 3);
    const auto y = data.run(compiled.program, compiled.schedule);
    const auto reference = evaluate(problem, data.data);
    std::size_t zeros = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(y[i], to_number(Scalar::f16, to_bits(Scalar::f16, reference.y[i])));
      zeros += y[i] == 0;
    }
    EXPECT_GT(zeros, y.size() / 8);
    EXPECT_LT(zeros, y.size() * 7 / 8);
  }
}

TEST(ActivationFunction, has_schedules_wherever_its_layer_has) {
  for (const std::int64_t m : {1, 8, 16, 64, 512}) {
    Problem problem = linear_of(ttype("uint4,group=128,scale=float16,zero=midpoint"), 16384, 4096,
                                Scalar::f16, m);
    const auto plain = compile(problem, device("h200"));
    problem.set_activation_function(Gated::gelu_tanh);
    const Compiled compiled = compile(problem, device("h200"));
    EXPECT_EQ(to_string(compiled.schedule), to_string(plain.schedule)) << m;
    EXPECT_THAT(to_string(compiled.program), HasSubstr("= gelu_pytorch_tanh itself")) << m;
    EXPECT_THAT(plain.source, Not(HasSubstr("sigmoid")));
  }
}

TEST(ActivationFunction, is_part_of_what_a_problem_says) {
  Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 64, 64, Scalar::f16, 8);
  const auto plain = to_string(problem);
  problem.set_activation_function(Gated::relu2);
  EXPECT_EQ(problem.columns_of_y(), 64);
  EXPECT_THAT(to_string(problem), HasSubstr("y[m<=8, n=64] f16 = relu2 of sum k=64"));
  problem.set_gate(Gating{});
  EXPECT_THAT([&] { check(problem); },
              ThrowsMessage<InvalidArgument>("relu2 of a product of gate and up"));
  problem.set_gate(std::nullopt);
  problem.set_activation_function(Gated::swiglu_oai);
  EXPECT_THAT([&] { check(problem); },
              ThrowsMessage<InvalidArgument>("swigluoai of sums, which takes a gate and up"));
  problem.set_activation_function(std::nullopt);
  EXPECT_EQ(to_string(problem), plain);
}

}  // namespace
}  // namespace ladder
