// SPDX-License-Identifier: Apache-2.0
//
// One token by products of integers, through the interpreter.
#include "layout/digits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "integer_layer.h"
#include "pipelines/decode/shared_memory.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using testing::LinearCase;

const Device& h200() { return device("h200"); }

DecodeSchedule with(Reduction reduction, int warps_k, const Weights& weights = weights::AtOnce{}) {
  return {.tokens = 8,
          .warps_n = 1,
          .warps_k = warps_k,
          .blocks_per_warp = 1,
          .weights = weights,
          .reduction = reduction,
          .route = Route::digits};
}

/// All at once, in a ring, through registers, and over several tiles of rows.
std::vector<DecodeSchedule> schedules() {
  const auto persistent =
      with(Reduction::cluster, 2,
           weights::RegisterStages{.k_tiles = 2, .stages = 2, .tiles_per_cta = 2});
  DecodeSchedule ring = with(Reduction::none, 1, weights::Ring{.k_tiles = 2, .stages = 2});
  ring.dependent_launch = true;
  return {with(Reduction::ordered, 2), ring,
          with(Reduction::none, 1, weights::DoubleBuffered{.k_tiles = 4}), persistent};
}

Program checked(const Problem& problem, const DecodeSchedule& schedule) {
  EXPECT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  return program;
}

std::int64_t columns(const DecodeSchedule& s) {
  return s.cta_columns() * (s.reduction == Reduction::none ? 1 : 2);
}

class Digits : public ::testing::TestWithParam<Scalar> {};

TEST_P(Digits, are_exact_on_integers_of_every_width_and_zero_point) {
  int served = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    for (int zero : {0, 1, 1 << (bits - 1)}) {
      for (const DecodeSchedule& schedule : schedules()) {
        const auto k = columns(schedule);
        Problem problem = testing::integer_layer(bits, zero, 64, GetParam(), 1, 128, k, GetParam());
        if (!objection(schedule, decide(problem, h200())).empty()) continue;
        ++served;
        const auto data = LinearCase::integers(problem, 1);
        EXPECT_EQ(data.run(checked(problem, schedule), schedule), data.exact())
            << to_string(problem) << "; " << to_string(schedule);
      }
    }
  }
  EXPECT_EQ(served, 8 * 3 * 4);
}

// Such as -1 and 1 in one bit. Bytes of the other widths begin with the code's lowest bit.
TEST_P(Digits, are_exact_with_a_zero_point_between_two_codes) {
  int served = 0;
  for (int bits = 1; bits <= 8; ++bits) {
    for (int zero : {1, (1 << bits) - 1}) {
      for (const DecodeSchedule& schedule : schedules()) {
        Problem problem = testing::integer_layer(bits, zero, 64, GetParam(), 1, 128,
                                                 columns(schedule), GetParam());
        testing::set_integers(problem, bits, zero, 1, -1);
        const auto why = objection(schedule, decide(problem, h200()));
        if (bits > 3) {
          EXPECT_EQ(why, "a zero point between two bytes") << to_string(problem);
          continue;
        }
        ++served;
        const auto data = LinearCase::integers(problem, 1);
        EXPECT_EQ(data.run(checked(problem, schedule), schedule), data.exact())
            << to_string(problem) << "; " << to_string(schedule);
      }
    }
  }
  EXPECT_EQ(served, 3 * 2 * 4);
}

TEST_P(Digits, stay_within_the_bound_whatever_the_borders) {
  for (int bits : {1, 2, 3, 4, 7}) {
    for (std::int64_t group : {0, 32, 128}) {
      for (const DecodeSchedule& schedule : schedules()) {
        const auto k = columns(schedule) - (group == 0 ? 9 : 0);
        Problem problem = testing::integer_layer(bits, 1 << (bits - 1), group, GetParam(), 1, 121,
                                                 k, Scalar::f16);
        problem.permuted_columns = bits == 3, problem.set_bias(bits == 2);
        if (bits == 2) testing::set_integers(problem, 2, 2, 0, 0, true);
        if (!objection(schedule, decide(problem, h200())).empty()) continue;
        const auto data = LinearCase::reals(problem, 1);
        const auto y = data.run(checked(problem, schedule), schedule);
        const auto reference = evaluate(problem, data.data);
        for (std::size_t i = 0; i < y.size(); ++i) {
          ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i))
              << to_string(problem) << "; " << to_string(schedule) << "; y[" << i << "]";
        }
      }
    }
  }
}

TEST_P(Digits, of_a_number_that_is_not_finite_spoil_every_sum) {
  const DecodeSchedule schedule = schedules().front();
  const Problem problem =
      testing::integer_layer(2, 2, 64, GetParam(), 1, 64, columns(schedule), GetParam());
  for (double spoiled : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    auto data = LinearCase::integers(problem, 1);
    data.data.x[70] = data.bits(spoiled);
    for (double y : data.run(checked(problem, schedule), schedule)) EXPECT_TRUE(std::isnan(y)) << y;
  }
}

TEST_P(Digits, of_the_largest_and_smallest_numbers_keep_both) {
  const DecodeSchedule schedule = schedules().front();
  const Problem problem =
      testing::integer_layer(4, 8, 0, GetParam(), 1, 64, columns(schedule), std::nullopt);
  auto data = LinearCase::integers(problem, 1);
  for (auto& x : data.data.x) x = 0;
  const double largest = std::ldexp(1.0, GetParam() == Scalar::f16 ? 9 : 40);
  const double smallest = std::ldexp(1.0, GetParam() == Scalar::f16 ? -24 : -14);
  data.data.x[0] = data.bits(largest), data.data.x[1] = data.bits(smallest);
  // Where the large one meets a zero, only the small one is left, exactly.
  data.data.codes[0] = 8, data.data.codes[1] = 11;
  const auto y = data.run(checked(problem, schedule), schedule);
  EXPECT_EQ(y[0], 3 * smallest);
}

// A digit's plane, a column's place and a unit's power of two each change a result.
TEST_P(Digits, in_the_wrong_place_are_caught) {
  const DecodeSchedule schedule = schedules().front();
  const Problem problem =
      testing::integer_layer(2, 2, 64, GetParam(), 1, 64, columns(schedule), GetParam());
  const auto data = LinearCase::integers(problem, 1);
  auto program = checked(problem, schedule);
  const auto change = [&](const auto& each) {
    const std::function<void(std::vector<Statement>&)> walk = [&](std::vector<Statement>& body) {
      for (Statement& statement : body) {
        each(statement);
        if (auto* loop = std::get_if<For>(&statement.op)) walk(loop->body);
      }
    };
    Program changed = program;
    walk(changed.body);
    return data.run(changed, schedule);
  };
  EXPECT_EQ(change([](Statement&) {}), data.exact());
  EXPECT_NE(change([](Statement& s) {
              if (auto* unpack = std::get_if<UnpackBytes>(&s.op)) {
                unpack->step = remainder(unpack->step + Affine(1), 2);
              }
            }),
            data.exact());
  EXPECT_NE(change([](Statement& s) {
              if (auto* join = std::get_if<JoinDigits>(&s.op)) {
                join->scalar = join->scalar == Scalar::f16 ? Scalar::bf16 : Scalar::f16;
              }
            }),
            data.exact());
  EXPECT_NE(change([](Statement& s) {
              if (auto* split = std::get_if<SplitDigits>(&s.op)) split->at[1] = 1;
            }),
            data.exact());
}

INSTANTIATE_TEST_SUITE_P(Activations, Digits, ::testing::Values(Scalar::f16, Scalar::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(DigitsRoute, is_for_one_token) {
  DecodeSchedule schedule = schedules().front();
  Problem problem =
      testing::integer_layer(2, 2, 64, Scalar::f16, 8, 64, columns(schedule), Scalar::f16);
  EXPECT_EQ(objection(schedule, decide(problem, h200())), "8 tokens have more digits than rows");
  problem.m = 1, testing::set_integers(problem, 2, 3);
  EXPECT_EQ(objection(schedule, decide(problem, h200())), "a zero point of 3 is no byte");
  testing::set_integers(problem, 2, 2), schedule.tokens = 16;
  EXPECT_EQ(objection(schedule, decide(problem, h200())), "16 rows for 8 digits");
}

// In the code that is emitted, all threads of a block find the largest exponent through it.
TEST(DigitsRoute, of_bfloat16_leaves_room_for_the_largest_exponent) {
  const DecodeSchedule all = with(Reduction::none, 3, weights::DoubleBuffered{.k_tiles = 147});
  Problem problem =
      testing::integer_layer(2, 2, 0, Scalar::f16, 1, 64, all.cta_columns(), Scalar::f16);
  ASSERT_EQ(shared_bytes(all, problem), h200().shared_per_block_bytes);
  EXPECT_EQ(objection(all, decide(problem, h200())), "");
  problem.set_activation(Scalar::bf16);
  ASSERT_EQ(shared_bytes(all, problem), h200().shared_per_block_bytes);
  EXPECT_EQ(objection(all, decide(problem, h200())), "232576 bytes of shared memory");
}

}  // namespace
}  // namespace ladder
