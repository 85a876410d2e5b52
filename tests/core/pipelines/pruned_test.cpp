// SPDX-License-Identifier: Apache-2.0
#include "pipelines/pruned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expr/constructors.h"
#include "integer_layer.h"

namespace ladder {
namespace {

const Problem kProblem = testing::integer_layer(4, 8, 128, Scalar::f16, 8, 4096, 4096);

int kept(const std::vector<Candidate>& all) {
  return static_cast<int>(
      std::ranges::count_if(all, [](const Candidate& c) { return c.dropped.empty(); }));
}

TEST(Pruned, drops_nothing_that_could_beat_the_best) {
  const auto all = candidates(decide(kProblem, device("h200")));
  EXPECT_EQ(kept(pruned(all, decide(kProblem, device("h200")), 1)), kept(all));
}

TEST(Pruned, drops_everything_when_the_best_beats_the_memory) {
  const auto all =
      pruned(candidates(decide(kProblem, device("h200"))), decide(kProblem, device("h200")), 1e-9);
  EXPECT_EQ(kept(all), 0);
  EXPECT_THAT(all.front().dropped, ::testing::HasSubstr("alone, the best takes 0.0 us"));
}

TEST(Pruned, drops_candidates_whose_few_blocks_leave_multiprocessors_idle) {
  const Device& h200 = device("h200");
  const auto all = candidates(decide(kProblem, h200));
  const double floor = least_bytes(kProblem, kProblem.m) / h200.global.bytes_per_second;
  const auto some = pruned(all, decide(kProblem, h200), 1.5 * floor);
  EXPECT_LT(kept(some), kept(all));
  EXPECT_GT(kept(some), 0);
  EXPECT_TRUE(some.front().dropped.empty());
  for (const Candidate& candidate : some) {
    const auto before = std::ranges::find(all, candidate.schedule, &Candidate::schedule);
    ASSERT_NE(before, all.end());
    if (before->dropped == candidate.dropped) continue;
    const auto moved = traffic(candidate.schedule, decide(kProblem, h200));
    EXPECT_GT(std::max(moved.shared_bytes / h200.fill_bytes_per_second(),
                       moved.global_bytes / h200.global.bytes_per_second),
              1.5 * floor);
    EXPECT_THAT(candidate.dropped, ::testing::HasSubstr("us for L2 alone"));
  }
}

TEST(Pruned, traffic_is_never_below_the_bound_of_any_schedule) {
  for (const Device& row : devices()) {
    if (!has_tile_programs(row)) continue;
    for (std::int64_t group : {0, 64, 128}) {
      for (std::int64_t m : {1, 16}) {
        Problem problem = kProblem;
        testing::set_group(problem, group);
        problem.m = m;
        EXPECT_NO_THROW(pruned(candidates(decide(problem, row)), decide(problem, row), 1))
            << row.name;
      }
    }
  }
}

// The cache of 8 MiB has none of the tensors whole: more than each once is moved.
TEST(Pruned, many_tokens_on_a_machine_with_a_small_cache_move_what_any_schedule_does) {
  Problem problem = linear_of(ttype("int4,channel,scale=float16"), 8192, 8192, Scalar::f16, 4096);
  problem.round_x(Scalar::s8);
  const auto decisions = decide(problem, device("mi250"));
  const auto all = candidates(decisions);
  ASSERT_EQ(all.front().dropped, "");
  const auto global = verdict_of(all.front().schedule, decisions).levels.front();
  EXPECT_GT(global.traffic_bytes, traffic(all.front().schedule, decisions).global_bytes);
  EXPECT_EQ(global.fraction_of_bound, 1);
}

TEST(Pruned, wants_a_time) {
  EXPECT_THROW(pruned({}, decide(kProblem, device("h200")), 0), InvalidArgument);
}

}  // namespace
}  // namespace ladder
