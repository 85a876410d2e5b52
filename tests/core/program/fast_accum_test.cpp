// SPDX-License-Identifier: Apache-2.0
//
// Tiles of e4m3 whose sums are the matrix unit's: no others are kept, and they serve every shape.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "pipelines/schedule.h"
#include "program/linear_case.h"
#include "program/tile_cases.h"

namespace ladder {
namespace {

using testing::LinearCase;

const Device& h200() { return device("h200"); }

constexpr RoundedX kFast(Scalar::e4m3, true);

class FastAccum : public ::testing::TestWithParam<const char*> {};

TEST_P(FastAccum, is_exact_on_integers_and_adds_up_products_once) {
  const TType& type = ttype(GetParam());
  std::vector<std::pair<Problem, TileSchedule>> cases;
  unsigned turn = 0;
  const auto add = [&](const auto& shape, bool warpgroups) {
    ++turn;
    const auto made = testing::tile_case(shape, type, turn % 2 == 0 ? Scalar::f16 : Scalar::bf16,
                                         static_cast<Reduction>(turn % 3), Route::bytes,
                                         turn % 2 == 0, 3, warpgroups, kFast);
    cases.insert(cases.end(), made.begin(), made.end());
    const auto producers = testing::with_producers(made);
    cases.insert(cases.end(), producers.begin(), producers.end());
  };
  for (const auto& shape : testing::kByteShapes) add(shape, true);
  for (const auto& shape : testing::kRoundedByWarps) add(shape, false);
  for (auto& [problem, schedule] : cases) {
    problem.set_bias(turn++ % 2 == 0);
    const Program program = lower(decide(problem, h200()), schedule);
    ASSERT_NO_THROW(verify(program, h200().shared_per_block_bytes)) << to_string(schedule);
    EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
    const auto integers = LinearCase::integers(problem, problem.m, turn);
    ASSERT_EQ(integers.run(program, schedule), integers.exact())
        << to_string(problem) << to_string(schedule);
    EXPECT_EQ(keeps_totals(schedule, problem), problem.groups() > 1) << to_string(schedule);
  }
  EXPECT_GE(cases.size(), 8U);
}

INSTANTIATE_TEST_SUITE_P(Types, FastAccum,
                         ::testing::Values("float8_e4m3,channel,scale=float16",
                                           "float5_e2m2,channel,scale=bfloat16",
                                           "int4,channel,scale=float16",
                                           "float8_e4m3,group=256,scale=float16",
                                           "uint4,group=128,scale=float16,zero=integer"),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

// Relative scales are of 128 columns, whatever sums may be.
TEST(FastAccumOfTiles, leaves_relative_scales_as_they_are) {
  for (const bool fast : {false, true}) {
    Problem problem = linear_of(ttype("mxfp4"), 4096, 4096, Scalar::bf16, 512);
    problem.round_x(RoundedX(Scalar::e4m3, fast));
    int relative = 0;
    for (const TileSchedule& s : tile_space(decide(problem, h200()), false)) {
      if (s.scale_place != ScalePlace::relative) continue;
      ++relative;
      EXPECT_TRUE(keeps_totals(s, problem));
      EXPECT_EQ(summed_columns(s, problem), kRelativeColumns);
    }
    EXPECT_GE(relative, 1);
  }
}

// The registers of promoted sums go to larger tiles.
TEST(FastAccumOfTiles, has_tiles_that_promoted_sums_have_no_room_for) {
  const auto largest = [](bool fast) {
    Problem problem =
        linear_of(ttype("float8_e4m3,channel,scale=float16"), 8192, 8192, Scalar::bf16, 1024);
    problem.round_x(RoundedX(Scalar::e4m3, fast));
    const auto decisions = decide(problem, h200());
    std::int64_t most = 0;
    for (const TileSchedule& s : tile_space(decisions, false)) {
      if (objection(s, decisions).empty()) most = std::max<std::int64_t>(most, s.rows * s.tokens);
    }
    return most;
  };
  EXPECT_GT(largest(true), largest(false));
}

}  // namespace
}  // namespace ladder
