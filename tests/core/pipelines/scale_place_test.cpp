// SPDX-License-Identifier: Apache-2.0
//
// The dimension of schedules that says where scales multiply.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "expr/constructors.h"
#include "pipelines/schedule.h"
#include "schedule/decisions.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Device& h200() { return device("h200"); }

Problem of(const char* type, Scalar activation = Scalar::f16, std::int64_t m = 8) {
  return linear_of(ttype(type), 4096, 4096, activation, m);
}

constexpr DecodeSchedule kOnce{.tokens = 8,
                               .warps_n = 1,
                               .warps_k = 8,
                               .blocks_per_warp = 2,
                               .weights = weights::DoubleBuffered{.k_tiles = 4}};

DecodeSchedule with(ScalePlace place, DecodeSchedule schedule = kOnce) {
  schedule.scale_place = place;
  return schedule;
}

TEST(ScalePlaces, are_both_candidates_where_operands_have_the_scales_by_themselves) {
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    for (std::int64_t m : {1, 8, 16}) {
      const auto all = candidates(decide(of("nvfp4", activation, m), h200()));
      const auto kept = [&](ScalePlace place) {
        return std::ranges::count_if(all, [&](const Candidate& c) {
          return c.dropped.empty() && std::get<DecodeSchedule>(c.schedule).scale_place == place;
        });
      };
      EXPECT_GT(kept(ScalePlace::usual), 0);
      EXPECT_GT(kept(ScalePlace::sums), 0);
      EXPECT_EQ(kept(ScalePlace::operands), 0);
      // In numbers of both and of each: what is not in the one place is in the other.
      EXPECT_EQ(std::ranges::count(all, ScalePlace::sums,
                                   [](const Candidate& c) {
                                     return std::get<DecodeSchedule>(c.schedule).scale_place;
                                   }),
                static_cast<std::ptrdiff_t>(all.size() / 2));
    }
  }
}

// Nothing measured says that operands are better for wider groups.
TEST(ScalePlaces, are_one_candidate_elsewhere) {
  for (const char* type : {"uint4,group=128,scale=float16", "mxfp4", "nf4", "uint4",
                           "float4_e2m1,group=32,scale=float8_e4m3"}) {
    for (const Candidate& c : candidates(decide(of(type), h200()))) {
      ASSERT_EQ(std::get<DecodeSchedule>(c.schedule).scale_place, ScalePlace::usual) << type;
    }
  }
}

// Measured on an H200: 39.9 us in operands, 48.6 in sums, and 42.9 and 57.3 with bf16
// (docs/dev/notebook_gpu.md).
TEST(ScalePlaces, rank_sums_behind_operands_and_further_with_bf16_as_measured) {
  std::vector<double> ratios;
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    const Problem problem = linear_of(ttype("nvfp4"), 28672, 8192, activation, 1);
    const auto all = candidates(decide(problem, h200()));
    const auto first = std::ranges::find(all, ScalePlace::sums, [](const Candidate& c) {
      return std::get<DecodeSchedule>(c.schedule).scale_place;
    });
    ASSERT_EQ(first->dropped, "");
    ratios.push_back(first->cost.seconds / all.front().cost.seconds);
    for (const Candidate& c : all) {
      if (std::get<DecodeSchedule>(c.schedule).scale_place == ScalePlace::sums) continue;
      const auto sums = with(ScalePlace::sums, std::get<DecodeSchedule>(c.schedule));
      EXPECT_GT(cost(sums, decide(problem, h200())).seconds, c.cost.seconds) << to_string(sums);
      // What sums have room for, operands have, too.
      EXPECT_FALSE(!c.dropped.empty() && objection(sums, decide(problem, h200())).empty())
          << to_string(sums);
    }
  }
  EXPECT_GT(ratios[0], 1);
  EXPECT_GT(ratios[1], ratios[0]);
}

TEST(ScalePlaces, are_spelled_where_they_are_not_the_usual) {
  EXPECT_THAT(to_string(with(ScalePlace::usual)), Not(HasSubstr("scaled")));
  EXPECT_THAT(to_string(with(ScalePlace::sums)), HasSubstr("multiply_add, scaled sums, 1 per"));
  EXPECT_THAT(to_string(with(ScalePlace::operands)),
              HasSubstr("multiply_add, scaled operands, 1 per"));
}

TEST(ScalePlaces, without_room_for_the_scales_are_refused) {
  EXPECT_EQ(objection(with(ScalePlace::sums), decide(of("nvfp4"), h200())), "");
  EXPECT_EQ(objection(with(ScalePlace::operands), decide(of("nvfp4"), h200())), "");
  EXPECT_EQ(objection(with(ScalePlace::operands),
                      decide(of("float4_e2m1,group=32,scale=float8_e4m3"), h200())),
            "");
  EXPECT_EQ(
      objection(with(ScalePlace::operands), decide(of("uint4,group=128,scale=float16"), h200())),
      "products of 4 and 11 significant bits do not fit f16's 11");
  EXPECT_EQ(objection(with(ScalePlace::sums), decide(of("uint4"), h200())), "no scales for sums");
}

}  // namespace
}  // namespace ladder
