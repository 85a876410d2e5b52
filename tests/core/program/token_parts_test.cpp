// SPDX-License-Identifier: Apache-2.0
//
// Tiles whose tokens are multiplied in parts: the numbers are those of whole tiles, to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pipelines/schedule.h"
#include "program/linear_case.h"
#include "program/tile_cases.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

const Device& h200() { return device("h200"); }

struct Case {
  const char* type;
  ScalePlace place = ScalePlace::usual;
};
constexpr Case kCases[] = {
    {"float8_e4m3,channel,scale=float16"},          {"float8_e4m3,group=128,scale=bfloat16"},
    {"float6_e3m2,group=256,scale=float16"},        {"int4,group=128,scale=float16"},
    {"uint4,group=128,scale=float16,zero=integer"}, {"mxfp4", ScalePlace::relative}};

std::vector<std::pair<Problem, TileSchedule>> cases_of(const Case& c) {
  std::vector<std::pair<Problem, TileSchedule>> out;
  unsigned turn = 0;
  for (const auto& shape : testing::kPartShapes) {
    ++turn;
    auto whole =
        testing::tile_case(shape, ttype(c.type), turn % 2 == 0 ? Scalar::f16 : Scalar::bf16,
                           static_cast<Reduction>(turn % 3), Route::bytes, turn % 2 == 0, 3, true,
                           Scalar::e4m3, c.place);
    const auto producers = testing::with_producers(whole);
    whole.insert(whole.end(), producers.begin(), producers.end());
    for (auto& [problem, schedule] : testing::in_parts(whole)) {
      problem.set_bias(turn % 2 == 0);
      out.push_back({problem, schedule});
    }
  }
  return out;
}

class TokenParts : public ::testing::TestWithParam<Case> {};

TEST_P(TokenParts, have_the_sums_of_whole_tiles) {
  const auto cases = cases_of(GetParam());
  unsigned seed = 0;
  for (const auto& [problem, schedule] : cases) {
    const auto decisions = decide(problem, h200());
    const Program program = lower(decisions, schedule);
    ASSERT_NO_THROW(verify(program, h200().shared_per_block_bytes)) << to_string(schedule);
    EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
    const auto integers = LinearCase::integers(problem, problem.m, ++seed);
    ASSERT_EQ(integers.run(program, schedule), integers.exact())
        << to_string(problem) << to_string(schedule);
    auto whole = schedule;
    whole.token_parts = 1;
    const auto random = LinearCase::reals(problem, problem.m, seed);
    EXPECT_EQ(random.run(program, schedule), random.run(lower(decisions, whole), whole))
        << to_string(problem) << to_string(schedule);
  }
  EXPECT_GE(cases.size(), 5U);
}

INSTANTIATE_TEST_SUITE_P(Types, TokenParts, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(TokenPartsOfTiles, are_read_back_and_say_what_they_do_not_serve) {
  Problem problem =
      linear_of(ttype("float8_e4m3,channel,scale=float16"), 4096, 4096, Scalar::f16, 4096);
  problem.round_x(Scalar::e4m3);
  const std::string text =
      "tile 192x128x128, token tiles 32, warps 12x1, warpgroups, producers, token parts 2, k-tiles "
      "32, stages 4, none, bytes, 1 per multiprocessor";
  const auto read = tile_schedule_of(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(to_string(*read), text);
  EXPECT_EQ(objection(*read, decide(problem, h200())), "");
  const auto why = [&](const std::function<void(TileSchedule&, Problem&)>& change) {
    auto schedule = *read;
    auto changed = problem;
    change(schedule, changed);
    return objection(schedule, decide(changed, h200()));
  };
  EXPECT_THAT(why([](auto&, auto& p) {
                p = linear_of(ttype("int4,channel,scale=float16"), 4096, 4096, Scalar::f16, 4096);
                p.round_x(Scalar::s8);
              }),
              HasSubstr("sums that are promoted"));
  EXPECT_THAT(why([](auto&, auto& p) { p.formats.fast_accum = true; }),
              HasSubstr("sums that are promoted"));
  EXPECT_THAT(why([](auto& s, auto&) { s.columns = 256, s.k_tiles = 16, s.stages = 3; }),
              HasSubstr("128 columns a sum in k-tiles of 256"));
  EXPECT_THAT(why([](auto& s, auto&) { s.token_parts = 3; }), HasSubstr("128 tokens in 3 parts"));
  EXPECT_THAT(why([](auto& s, auto&) { s.rows = 128, s.warps_n = 4; }),
              HasSubstr("2 units a warp"));
  EXPECT_THAT(why([](auto& s, auto&) { s.token_parts = 0; }), HasSubstr("parts of tokens"));
  // Among what tuning tries.
  int parts = 0;
  for (const TileSchedule& s : tile_space(decide(problem, h200()), false)) {
    parts += s.token_parts > 1 ? 1 : 0;
  }
  EXPECT_GE(parts, 4);
}

}  // namespace
}  // namespace ladder
