// SPDX-License-Identifier: Apache-2.0
//
// Which schedules have waves that alternate, and which may not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "expr/constructors.h"
#include "pipelines/schedule.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

constexpr const char* kUint4 = "uint4,group=128,scale=float16";
constexpr const char* kLarge =
    "waves 2x4x1, tokens 256, token tiles 8, columns 64, k-tiles 64, stages 1, alternating, none, "
    "multiply_add, rounded operands, 1 per compute unit";

Decisions decided(const char* name, std::int64_t m, std::int64_t k = 4096,
                  const char* type = kUint4) {
  return decide(linear_of(ttype(type), 4096, k, Scalar::f16, m), device(name));
}

std::vector<Candidate> alternating(const Decisions& decisions) {
  std::vector<Candidate> out;
  for (const Candidate& each : candidates(decisions)) {
    const auto* s = std::get_if<WaveSchedule>(&each.schedule);
    if (s != nullptr && s->alternate) out.push_back(each);
  }
  return out;
}

TEST(AlternatingSchedules, are_read_as_they_are_printed) {
  const auto schedule = wave_schedule_of(kLarge);
  ASSERT_TRUE(schedule);
  EXPECT_TRUE(schedule->alternate);
  EXPECT_EQ(to_string(*schedule), kLarge);
  EXPECT_EQ(objection(*schedule, decided("mi300x", 2048)), "");
}

TEST(AlternatingSchedules, are_offered_for_large_tiles_of_many_tokens_on_cdna) {
  for (const char* name : {"mi210", "mi250", "mi300x", "mi355x"}) {
    // Operands of float16 may not have their scales on CDNA 2, and two sets of sums are too many.
    const auto all = alternating(decided(name, 2048, 4096, "uint4,channel,scale=float16"));
    EXPECT_GT(std::ranges::count(all, "", &Candidate::dropped), 0) << name;
    for (const Candidate& each : all) {
      const auto& s = std::get<WaveSchedule>(each.schedule);
      EXPECT_TRUE(s.rows() >= 256 && s.tokens >= 128) << to_string(s);
    }
    EXPECT_TRUE(alternating(decided(name, 64)).empty()) << name;
  }
  for (const char* name : {"rx7900xtx", "rx9070xt", "v100", "h200"}) {
    EXPECT_TRUE(alternating(decided(name, 2048)).empty()) << name;
  }
}

// The model knows of no difference, so that whoever does not measure keeps what he had.
TEST(AlternatingSchedules, come_behind_those_that_cost_the_same) {
  const auto decisions = decided("mi300x", 2048);
  const auto all = candidates(decisions);
  unsigned twins = 0;
  for (auto each = all.begin(); each != all.end(); ++each) {
    const auto* s = std::get_if<WaveSchedule>(&each->schedule);
    if (s == nullptr || !s->alternate || !each->dropped.empty()) continue;
    WaveSchedule twin = *s;
    twin.alternate = false;
    for (const int stages : {1, 2}) {
      twin.stages = stages;
      const auto found = std::ranges::find(all, Schedule(twin), &Candidate::schedule);
      if (found == all.end() || !found->dropped.empty()) continue;
      EXPECT_LE(found->cost.seconds, each->cost.seconds);
      EXPECT_LT(found, each) << to_string(twin);
      ++twins;
    }
  }
  EXPECT_GT(twins, 0U);
  EXPECT_FALSE(
      std::get<WaveSchedule>(
          std::ranges::find_if(all, [](const Candidate& c) { return !is_dense(c.schedule); })
              ->schedule)
          .alternate);
}

TEST(AlternatingSchedules, are_refused_with_the_reason) {
  const auto why = [](const char* name, const std::function<void(WaveSchedule&)>& change,
                      std::int64_t k = 4096) {
    auto schedule = *wave_schedule_of(kLarge);
    change(schedule);
    return objection(schedule, decided(name, 2048, k));
  };
  EXPECT_EQ(why("rx9070xt", [](auto&) {}), "waves of 32 lanes do not alternate");
  EXPECT_EQ(why("mi300x", [](auto& s) { s.waves_m = 2, s.tokens = 128, s.token_tiles = 16; }),
            "4 waves of 1 workgroups on 4 SIMDs do not alternate");
  EXPECT_EQ(why("mi300x", [](auto& s) { s.groups_per_cu = 2; }),
            "8 waves of 2 workgroups on 4 SIMDs do not alternate");
  EXPECT_EQ(why("mi300x",
                [](auto& s) { s.waves_m = 2, s.waves_k = 2, s.tokens = 128, s.token_tiles = 16; }),
            "what alternates are waves along N and M, of whole products, with words ahead");
  EXPECT_EQ(why("mi300x", [](auto& s) { s.behind = true; }),
            "what alternates are waves along N and M, of whole products, with words ahead");
  EXPECT_EQ(why("mi300x", [](auto& s) { s.k_tiles = 1, s.reduction = Reduction::ordered; }),
            "one k-tile: nothing to bring while waves alternate");
  EXPECT_EQ(why("mi300x", [](auto& s) { s.stages = 2; }),
            "waves that alternate need one stage of activations, of any size");
  EXPECT_EQ(why(
                "mi300x", [](auto& s) { s.k_tiles = 65; }, 4100),
            "single elements of x while waves alternate");
}

// Half of the columns of a k-tile are on their way at a time.
TEST(AlternatingSchedules, have_fewer_registers_than_their_twins) {
  const auto schedule = *wave_schedule_of(kLarge);
  auto twin = schedule;
  twin.alternate = false;
  const auto problem = decided("mi300x", 2048).problem;
  EXPECT_EQ(wave_registers(schedule, problem) + 8, wave_registers(twin, problem));
  EXPECT_EQ(shared_bytes(schedule, problem), shared_bytes(twin, problem));
}

}  // namespace
}  // namespace ladder
