// SPDX-License-Identifier: Apache-2.0
//
// Activations that come in rounds: exact by every way of going through the rounds, whatever the
// layer. mutation_test.cpp drops their waits and barriers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "integer_layer.h"
#include "pipelines/decode/shared_memory.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

const Device& h200() { return device("h200"); }

/// `rounds` of 128 columns, or 256 with four warps.
DecodeSchedule in_rounds(int warps_n, int warps_k, int rounds, int depth, int x_rounds,
                         Reduction reduction = Reduction::none) {
  DecodeSchedule out{8, warps_n, warps_k, 1, rounds, 1, reduction, Route::multiply_add, false, 1};
  out.depth = depth, out.x_rounds = x_rounds;
  return out;
}

void expect_exact(const Problem& problem, const DecodeSchedule& schedule, std::int64_t m) {
  ASSERT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  const auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  const auto data = LinearCase::integers(problem, m);
  EXPECT_EQ(data.run(program, schedule), data.exact())
      << to_string(problem) << "; " << to_string(schedule) << "; m " << m;
}

Problem layer(const DecodeSchedule& s, std::int64_t missing_columns = 0) {
  const auto splits = s.reduction == Reduction::none ? 1 : 2;
  return testing::integer_layer(4, 8, 64, Scalar::f16, s.tokens, s.block_rows() * s.sweeps,
                                s.block_columns() * splits - missing_columns);
}

// Up to 8 rounds are written out, more are a loop with what is left behind it.
TEST(ActivationRounds, are_exact_at_every_depth_and_number_of_rounds) {
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (auto [rounds, depth, x_rounds] : {std::array{2, 0, 2},
                                           {5, 0, 3},
                                           {4, 1, 2},
                                           {4, 2, 4},
                                           {9, 1, 3},
                                           {10, 2, 2},
                                           {12, 2, 4},
                                           {12, 4, 4}}) {
      for (int warps_n : {1, 2}) {
        const auto s = in_rounds(warps_n, 2, rounds, depth, x_rounds, reduction);
        expect_exact(layer(s), s, 3);
        expect_exact(layer(s, 64 + 8), s, 8);
      }
    }
  }
}

// Signals in place of the barrier, at every lookahead.
TEST(ActivationRounds, are_exact_when_warps_are_apart) {
  for (auto [rounds, depth, x_rounds, slack] : {std::array{4, 0, 3, 1},
                                                {5, 0, 4, 2},
                                                {4, 2, 4, 1},
                                                {4, 2, 4, 2},
                                                {12, 2, 4, 1},
                                                {9, 1, 3, 1},
                                                {16, 4, 8, 6},
                                                {20, 4, 8, 3}}) {
    for (bool dependent : {false, true}) {
      auto s = in_rounds(2, 2, rounds, depth, x_rounds, Reduction::cluster);
      s.x_slack = slack, s.dependent_launch = dependent;
      expect_exact(layer(s), s, 3);
      expect_exact(layer(s, 64 + 8), s, 8);
      expect_exact(layer(s, 3), s, 8);
      auto problem = layer(s);
      problem.permuted_columns = true;
      expect_exact(problem, s, 2);
    }
  }
}

TEST(ActivationRounds, come_with_those_of_a_ring_of_weights) {
  for (auto [rounds, stages] : {std::array{4, 2}, {5, 3}, {2, 3}}) {
    auto s = in_rounds(2, 2, rounds, 0, stages, Reduction::cluster);
    s.stages = stages;
    if (stages > rounds) {
      EXPECT_THAT(objection(s, decide(layer(s), h200())),
                  HasSubstr("activations of 3 of 2 rounds"));
      continue;
    }
    expect_exact(layer(s), s, 5);
    expect_exact(layer(s, 16), s, 8);
    expect_exact(layer(s, 3), s, 8);
  }
}

TEST(ActivationRounds, come_again_for_every_sweep) {
  for (auto reduction : {Reduction::none, Reduction::cluster}) {
    for (int sweeps : {2, 3}) {
      for (auto route : {Route::multiply_add, Route::in_place}) {
        auto s = in_rounds(1, 2, 4, 2, 2, reduction);
        s.sweeps = sweeps, s.route = route;
        expect_exact(layer(s), s, 3);
        s.units = 2, s.x_rounds = 4;
        expect_exact(layer(s), s, 8);
      }
    }
  }
}

// Rows that end inside 16 bytes, and columns in another order, are not copied asynchronously.
TEST(ActivationRounds, serve_every_layer) {
  for (auto [rounds, depth] : {std::array{3, 0}, {4, 2}, {10, 2}}) {
    for (auto route : {Route::multiply_add, Route::in_place}) {
      auto s = in_rounds(2, 2, rounds, depth, 2, Reduction::cluster);
      s.route = route, s.dependent_launch = depth == 2;
      for (std::int64_t missing : {0, 5, 70}) {
        auto problem = layer(s, missing);
        testing::set_group(problem, 128), problem.set_bias(true);
        if (missing == 0) problem.permuted_columns = true;
        expect_exact(problem, s, 8);
        problem.set_activation(Scalar::bf16);
        if (route == Route::multiply_add) expect_exact(problem, s, 1);
      }
      auto zeros = layer(s);
      testing::set_stored_zero(zeros, Zero::integer);
      expect_exact(zeros, s, 3);
      testing::set_stored_zero(zeros, Zero::rescale);
      if (route == Route::multiply_add) expect_exact(zeros, s, 3);
    }
    auto table = layer(in_rounds(2, 2, rounds, depth, 2));
    testing::set_element(table, element("nf4"));
    const auto s = in_rounds(2, 2, rounds, depth, 2);
    const auto program = lower(decide(table, h200()), s);
    const auto data = LinearCase::reals(table, 4);
    const auto y = data.run(program, s);
    const auto reference = evaluate(table, data.data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i)) << i;
    }
  }
}

TEST(ActivationRounds, need_shared_memory_for_so_many_however_many_columns_a_block_has) {
  const auto few = in_rounds(2, 4, 28, 2, 4, Reduction::cluster);
  auto all = few;
  all.x_rounds = 0;
  const auto problem = layer(few);
  EXPECT_LT(shared_bytes(few, problem), shared_bytes(all, problem) / 2);
  EXPECT_EQ(shared_bytes(few, problem), lower(decide(problem, h200()), few).shared_bytes());
}

TEST(ActivationRounds, that_cannot_be_are_objected_to) {
  const auto refused = [](int rounds, int depth, int x_rounds) {
    const auto s = in_rounds(2, 2, rounds, depth, x_rounds);
    return objection(s, decide(layer(s), h200()));
  };
  EXPECT_THAT(refused(4, 0, 1), HasSubstr("activations of 1 of 4 rounds"));
  EXPECT_THAT(refused(4, 0, 5), HasSubstr("activations of 5 of 4 rounds"));
  EXPECT_THAT(refused(4, 2, 3), HasSubstr("activations of 3 rounds at depth 2"));
  auto swept = in_rounds(1, 2, 6, 2, 4);
  swept.sweeps = 2;
  EXPECT_THAT(objection(swept, decide(layer(swept), h200())),
              HasSubstr("sweeps of 6 rounds, activations of 4"));
  auto staged = in_rounds(2, 2, 4, 0, 3);
  staged.stages = 2;
  EXPECT_THAT(objection(staged, decide(layer(staged), h200())),
              HasSubstr("activations of 3 rounds, weights of 2"));
  for (int sharers : {0, 1}) {
    auto apart = in_rounds(2, 2, 4, 2, 0);
    apart.x_slack = 1, apart.sharers = sharers;
    EXPECT_THAT(objection(apart, decide(layer(apart), h200())),
                HasSubstr("warps apart by 1 rounds of activations that come at once"));
  }
}

}  // namespace
}  // namespace ladder
