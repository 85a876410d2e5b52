// SPDX-License-Identifier: Apache-2.0
#include "pipelines/diversified.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ladder {
namespace {

using testing::ElementsAre;

/// Kept, of that cost; a block of so many warps along N that goes through deep rounds or not.
Candidate candidate(double seconds, int warps_n, bool deep = true, std::string dropped = "") {
  Candidate out{};
  DecodeSchedule schedule{};
  schedule.warps_n = warps_n;
  if (deep) schedule.weights = weights::RegisterStages{.k_tiles = 2, .stages = 2};
  out.schedule = schedule;
  out.cost.seconds = seconds;
  out.dropped = std::move(dropped);
  return out;
}

std::vector<double> costs(const std::vector<Candidate>& all) {
  std::vector<double> out;
  for (const Candidate& c : all) out.push_back(c.cost.seconds);
  return out;
}

TEST(Diversified, counts_those_that_are_alike_one_per_cent_more_each) {
  const std::vector<Candidate> all = {candidate(1.000, 1), candidate(1.001, 1), candidate(1.002, 1),
                                      candidate(1.015, 2), candidate(1.016, 1)};
  // 1, 1.001 x 1.01, 1.015, 1.002 x 1.01^2, 1.016 x 1.01^3.
  EXPECT_THAT(costs(diversified(all, 5)), ElementsAre(1.000, 1.001, 1.015, 1.002, 1.016));
  EXPECT_THAT(costs(diversified(all, 2)), ElementsAre(1.000, 1.001, 1.002, 1.015, 1.016))
      << "those that are not measured stay in the order of their costs";
}

TEST(Diversified, one_goes_another_way) {
  for (bool deep : {true, false}) {
    const std::vector<Candidate> all = {candidate(1.0, 1, deep), candidate(1.1, 2, deep),
                                        candidate(1.2, 4, deep), candidate(1.3, 4, deep),
                                        candidate(1.39, 1, !deep)};
    EXPECT_THAT(costs(diversified(all, 3)), ElementsAre(1.0, 1.1, 1.39, 1.2, 1.3));
    EXPECT_THAT(costs(diversified(all, 5)), ElementsAre(1.0, 1.1, 1.2, 1.3, 1.39));
    EXPECT_THAT(costs(diversified(all, 1)), ElementsAre(1.0, 1.1, 1.2, 1.3, 1.39));
  }
}

TEST(Diversified, not_another_way_that_is_hopeless) {
  const std::vector<Candidate> all = {candidate(1.0, 1), candidate(1.1, 2), candidate(1.2, 4),
                                      candidate(1.41, 1, false)};
  EXPECT_THAT(costs(diversified(all, 3)), ElementsAre(1.0, 1.1, 1.2, 1.41));
}

TEST(Diversified, leaves_those_that_were_dropped_behind) {
  const std::vector<Candidate> all = {candidate(1.0, 1), candidate(1.1, 2),
                                      candidate(0.5, 4, false, "no room")};
  EXPECT_THAT(costs(diversified(all, 8)), ElementsAre(1.0, 1.1, 0.5));
  EXPECT_THAT(costs(diversified({candidate(1.0, 1, true, "no room")}, 8)), ElementsAre(1.0));
}

}  // namespace
}  // namespace ladder
