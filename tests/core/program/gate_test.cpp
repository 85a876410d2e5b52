// SPDX-License-Identifier: Apache-2.0
//
// Products of gate and up where their sums are made, through the interpreter: right in every
// pipeline and with every way in which parts of K are added up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compile.h"
#include "program/expert_case.h"
#include "program/gate_cases.h"
#include "program/interpret.h"

namespace ladder {
namespace {

using testing::expect_right;
using ::testing::HasSubstr;
using testing::LinearCase;
using ::testing::ThrowsMessage;

TEST(Gate, is_right_in_every_pipeline) {
  const auto check = [](const char* name, const auto& cases, std::size_t least) {
    const Device& on = device(name);
    std::vector<std::pair<Problem, Schedule>> gated;
    testing::add_gated(gated, cases, on);
    ASSERT_GE(gated.size(), least) << name;
    unsigned seed = 0;
    std::set<std::string> gates;
    for (const auto& [problem, schedule] : gated) {
      ++seed;
      const auto m = seed % 2 == 0 ? problem.m : 1 + seed % problem.m;
      // Numbers about 1, where functions bend, and large ones, where few are right by chance.
      expect_right(problem, schedule, on,
                   seed % 3 == 0 ? LinearCase::integers(problem, m, seed)
                                 : LinearCase::reals(problem, m, seed));
      gates.insert(to_string(*problem.gate()));
    }
    EXPECT_EQ(gates.size(), testing::kGatings.size()) << name;
  };
  check("h200", testing::lowered_cases(), 60);
  check("h200", testing::tile_cases(), 60);
  check("mi300x", testing::wave_cases(device("mi300x"), 3), 5);
}

TEST(Gate, of_experts_is_right_for_the_rows_of_each_item) {
  unsigned seed = 0;
  std::size_t ran = 0;
  for (const std::int64_t rows : {16, 64}) {
    for (Problem problem : testing::expert_types(rows, 192, 256)) {
      problem.set_gate(testing::kGatings[++seed % testing::kGatings.size()]);
      const auto data = testing::ExpertCase::integers(problem, seed);
      std::size_t taken = 0;
      for (const Schedule& schedule :
           testing::expert_schedules(data.problem, device("h200"), seed % 2 == 0)) {
        if ((taken++ + seed) % 3 != 0) continue;
        const Program program = lower(decide(data.problem, device("h200")), schedule);
        std::vector<Argument> memory;
        std::size_t y = 0;
        for (const Buffer& buffer : program.buffers) {
          if (buffer.level != Level::global) continue;
          if (buffer.name == "y") y = memory.size();
          memory.push_back(data.argument(buffer.name, schedule));
        }
        interpret(program, memory, 0);
        ASSERT_EQ(data.objection_to(memory[y]), "")
            << to_string(data.problem) << "; " << to_string(schedule);
        ++ran;
      }
    }
  }
  EXPECT_GE(ran, 30U);
}

TEST(Gate, has_schedules_wherever_its_layer_has) {
  for (const std::int64_t m : {1, 8, 16, 64, 512}) {
    Problem problem = linear_of(ttype("uint4,group=128,scale=float16,zero=midpoint"), 28672, 4096,
                                Scalar::f16, m);
    problem.set_gate(Gating{});
    const Compiled compiled = compile(problem, device("h200"));
    EXPECT_THAT(to_string(compiled.program), HasSubstr("= gate silu ")) << m;
  }
}

TEST(Gate, needs_both_of_its_rows_in_a_thread) {
  // Of 32 rows a thread has two neighbours, not gate and up.
  const Layout neighbours = spatial({1, 16, 1}) * local({1, 2, 1});
  const Layout halves = spatial({1, 2, 1}) * local({1, 2, 1}) * spatial({1, 8, 1});
  EXPECT_FALSE(gate_slots(spatial({1, 16, 1}), neighbours).has_value());
  const auto slots = gate_slots(spatial({1, 16, 1}), halves);
  ASSERT_TRUE(slots.has_value());
  EXPECT_EQ(slots->size(), 1U);
  EXPECT_EQ(slots->front().gate, 0);
  EXPECT_EQ(slots->front().up, 1);
  EXPECT_FALSE(gate_slots(spatial({1, 8, 1}), halves).has_value());  // other threads
  Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 8, 64, Scalar::f16, 8);
  problem.set_gate(Gating{});
  EXPECT_THAT([&] { check(problem); },
              ThrowsMessage<InvalidArgument>(HasSubstr("gate and up have 8 rows")));
}

TEST(Gate, is_part_of_what_a_problem_says) {
  Problem problem = linear_of(ttype("uint4,channel,scale=float16"), 64, 64, Scalar::f16, 8);
  const auto plain = to_string(problem);
  problem.set_gate(Gating{.what = Gated::swiglu_oai, .limit = 7});
  EXPECT_EQ(problem.columns_of_y(), 32);
  EXPECT_THAT(to_string(problem),
              HasSubstr("y[m<=8, n/2, n=64] f16 = swigluoai limit 7 alpha 1.702 "));
  problem.set_gate(std::nullopt);
  EXPECT_EQ(to_string(problem), plain);
}

}  // namespace
}  // namespace ladder
