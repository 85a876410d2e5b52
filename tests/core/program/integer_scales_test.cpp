// SPDX-License-Identifier: Apache-2.0
//
// Weights of which groups have small integers as scales, and rows one more: as bytes beside x of
// int8 codes have their scales, and a row one sum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <variant>

#include "pipelines/linear/objection.h"
#include "pipelines/schedule.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/slips.h"
#include "program/tile_cases.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

constexpr const char* kType = testing::kIntegerScales;
constexpr const char* kTypes[] = {kType,
                                  "uint4,group=32,scale=uint3,zero=midpoint,scale2=float32:channel",
                                  "int4,group=64,scale=uint4,scale2=float32",
                                  "uint3,channel,scale=uint5,zero=midpoint,scale2=float32:channel",
                                  "uint2,group=256,scale=uint6,zero=midpoint,scale2=float32",
                                  "int5,group=128,scale=uint2,scale2=float32:channel",
                                  "ternary,group=64,scale=uint6,scale2=float32:channel",
                                  "uint1,group=32,scale=uint7,scale2=float32:channel"};

Program lowered(const Problem& problem, const TileSchedule& schedule) {
  return lower(decide(problem, device("h200")), schedule);
}

void for_each_case(const char* type,
                   const std::function<void(const Problem&, const TileSchedule&)>& use) {
  testing::for_each_tile_of_bytes(ttype(type), Scalar::s8, ScalePlace::usual, use);
}

class IntegerScales : public ::testing::TestWithParam<const char*> {};

TEST_P(IntegerScales, multiply_bytes_and_a_row_has_one_sum) {
  unsigned kept[2] = {}, produced = 0;
  for_each_case(GetParam(), [&](const Problem& problem, const TileSchedule& schedule) {
    Program program = lowered(problem, schedule);
    ASSERT_NO_THROW(verify(program, device("h200").shared_per_block_bytes)) << to_string(schedule);
    EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
    EXPECT_FALSE(keeps_totals(schedule, problem));
    unsigned scaled = 0;
    testing::for_each_op<Scale>(program.body, [&](const Scale& i) { scaled += i.scale >= 0; });
    EXPECT_EQ(scaled, 0U) << "scales multiply sums";
    const auto c = LinearCase::integers(problem, problem.m, ++kept[schedule.warpgroups]);
    produced += schedule.producers ? 1 : 0;
    ASSERT_EQ(c.run(program, schedule), c.exact()) << to_string(problem) << to_string(schedule);
  });
  EXPECT_GE(kept[false], 2U);
  EXPECT_GE(kept[true], 2U);
  EXPECT_GE(produced, 1U);
}

TEST_P(IntegerScales, serve_any_second_scales_within_the_bound) {
  unsigned kept = 0;
  for_each_case(GetParam(), [&](const Problem& problem, const TileSchedule& schedule) {
    if (++kept > 2) return;
    const auto c = LinearCase::reals(problem, std::min<std::int64_t>(problem.m, 9), kept);
    const auto y = c.run(lowered(problem, schedule), schedule);
    const Reference reference = evaluate(problem, c.data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), c.bound(reference, i, 0)) << i;
    }
  });
  EXPECT_GT(kept, 2U);
}

INSTANTIATE_TEST_SUITE_P(Types, IntegerScales, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(IntegerScales, show_every_slip) {
  const auto cases =
      testing::tile_case(testing::kByteShapes[2],
                         ttype("uint4,group=64,scale=uint4,zero=midpoint,scale2=float32:channel"),
                         Scalar::f16, Reduction::none, Route::bytes, false, 3, true, Scalar::s8);
  const auto& [problem, schedule] = cases.at(0);
  const auto after = [&](const std::function<void(UnpackBytes&)>& slip) {
    Program program = lowered(problem, schedule);
    testing::for_each_op<UnpackBytes>(program.body, slip);
    return testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m));
  };
  EXPECT_EQ(after([](UnpackBytes&) {}), "");
  EXPECT_EQ(after([](UnpackBytes& i) { i.group = 0; }), "wrong numbers");
  EXPECT_EQ(after([](UnpackBytes& i) { i.zero = 7; }), "wrong numbers");
  EXPECT_EQ(after([](UnpackBytes& i) { i.step = 0; }), "wrong numbers");
  EXPECT_EQ(after([](UnpackBytes& i) { i.scales = -1; }), "wrong numbers");
  EXPECT_THAT(after([](UnpackBytes& i) { i.group = 99; }), HasSubstr("group 99 of"));
  EXPECT_THAT(after([](UnpackBytes& i) { i.below_sign = true; }),
              HasSubstr("times scales in bytes"));
  Program program = lowered(problem, schedule);
  testing::for_each_op<Load>(program.body, [&](Load& i) {
    if (program.registers[i.to].name == "scale_of_rows") i.at[1] = 0;
  });
  EXPECT_EQ(testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m)),
            "wrong numbers");
}

TEST(IntegerScales, multiply_bytes_only_where_these_hold_the_products) {
  const auto why = [](const std::string& type, std::int64_t k = 512) {
    Problem problem = linear_of(ttype(type), 128, k, Scalar::f16, 128);
    problem.round_x(Scalar::s8);
    return no_scaled_operands(problem);
  };
  EXPECT_EQ(why(kType), "");
  EXPECT_EQ(why(kType, 131072), "sums of 131072 products of bytes");
  EXPECT_EQ(why(kType, 131071), "");
  EXPECT_EQ(why("uint4,group=128,scale=uint5,zero=midpoint,scale2=float32"),
            "products from -248 to 217 are no bytes");
  EXPECT_EQ(why("uint4,group=128,scale=uint4,scale2=float32"),
            "products from 0 to 225 are no bytes");
  EXPECT_EQ(why("uint4,group=128,scale=uint2,zero=integer,scale2=float32"),
            "stored zero points beside integer scales");
  EXPECT_EQ(why("int6,group=128,scale=uint1,scale2=float32"),
            "integer scales for codes of 6 bits, of at most 5");
  EXPECT_EQ(why("uint4,group=128,scale=float16,zero=midpoint"),
            "scales that are no integers beside x of s8");
}

TEST(IntegerScales, are_proposed_with_one_sum_or_scale_sums) {
  const auto places = [](const char* type) {
    Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, 512);
    problem.round_x(Scalar::s8);
    std::set<bool> totals;
    for (const Candidate& c : candidates(decide(problem, device("h200")))) {
      if (c.dropped.empty())
        totals.insert(keeps_totals(std::get<TileSchedule>(c.schedule), problem));
    }
    return totals;
  };
  EXPECT_EQ(places(kType), std::set{false});
  EXPECT_EQ(places("uint4,group=128,scale=uint8,zero=midpoint,scale2=float32"), std::set{true});
}

TEST(ScaledBytes, are_products_of_each_code) {
  for (const std::uint32_t scale : {1U, 7U, 15U}) {
    for (std::uint32_t codes = 0; codes < 1U << 16; codes += 13) {
      std::uint32_t bytes = 0;
      for (int b = 0; b < 4; ++b) bytes |= (codes >> (4 * b) & 15U) << (8 * b);
      const auto made = scaled_bytes(bytes, scale, 8);
      for (int b = 0; b < 4; ++b) {
        const int wanted = (static_cast<int>(codes >> (4 * b) & 15U) - 8) * static_cast<int>(scale);
        ASSERT_EQ(static_cast<std::int8_t>(made >> (8 * b) & 255U), wanted) << codes;
      }
    }
  }
}

}  // namespace
}  // namespace ladder
