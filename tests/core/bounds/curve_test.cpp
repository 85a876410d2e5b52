// SPDX-License-Identifier: Apache-2.0
#include "bounds/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace ladder::bounds {
namespace {

using testing::ElementsAre;

TEST(Curve, keeps_only_points_that_no_smaller_buffer_matches) {
  const Curve curve({{8, 5}, {2, 10}, {4, 10}, {4, 7}, {9, 6}, {16, 5}});
  EXPECT_THAT(curve.points(), ElementsAre(Point{2, 10}, Point{4, 7}, Point{8, 5}));
}

TEST(Curve, is_a_staircase_from_its_first_point_on) {
  const Curve curve({{2, 10}, {4, 6}});
  EXPECT_EQ(curve.at(1.9), std::numeric_limits<double>::infinity());
  EXPECT_EQ(curve.at(2), 10);
  EXPECT_EQ(curve.at(3.9), 10);
  EXPECT_EQ(curve.at(1e9), 6);
  EXPECT_EQ(curve.max_effectual(), (Point{4, 6}));
}

TEST(Curve, interpolates_on_straight_lines_between_points_only) {
  const Curve curve({{2, 10}, {4, 6}});
  EXPECT_EQ(curve.interpolated(3), 8);
  EXPECT_EQ(curve.interpolated(5), 6);
  EXPECT_EQ(curve.interpolated(1), std::numeric_limits<double>::infinity());
}

TEST(Curve, a_sum_starts_where_every_problem_fits) {
  const Curve parts[] = {Curve({{2, 10}, {4, 6}}), Curve({{3, 5}, {9, 1}})};
  EXPECT_THAT(sum(parts).points(), ElementsAre(Point{3, 15}, Point{4, 11}, Point{9, 7}));
}

TEST(Curve, an_envelope_takes_the_better_at_every_size) {
  const Curve ways[] = {Curve({{2, 10}, {8, 1}}), Curve({{3, 5}, {9, 2}})};
  EXPECT_THAT(envelope(ways).points(), ElementsAre(Point{2, 10}, Point{3, 5}, Point{8, 1}));
}

TEST(Curve, an_empty_one_has_no_last_point) {
  EXPECT_THROW(Curve().max_effectual(), InvalidArgument);
}

}  // namespace
}  // namespace ladder::bounds
