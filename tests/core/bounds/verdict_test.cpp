// SPDX-License-Identifier: Apache-2.0
#include "bounds/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "bounds/lower_bound.h"
#include "bounds/mesa.h"

namespace ladder::bounds {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const Einsum kDecode = matmul(1, 4096, 4096, {{2, 2}, {0.5, 0.5}, {2, 4}});

const Level kDram{"L2", 50e6, 1, 4e12};

TEST(Ruler, says_how_much_of_the_traffic_was_needed) {
  const double least = algorithmic_minimum(kDecode), traffic[] = {2 * least};
  const Verdict verdict = Ruler(kDecode, {kDram}, 1e15).judge(traffic);
  EXPECT_EQ(verdict.levels[0].bound_bytes, least);
  EXPECT_EQ(verdict.levels[0].curve_bytes, least);
  EXPECT_EQ(verdict.levels[0].fraction_of_bound, 0.5);
  EXPECT_EQ(verdict.binding, "L2");
  EXPECT_EQ(verdict.seconds, 2 * least / 4e12);
  EXPECT_EQ(verdict.floor_seconds, least / 4e12);
}

TEST(Ruler, arithmetic_binds_a_large_matmul) {
  const Bytes half{2, 2};
  const Einsum einsum = matmul(8192, 8192, 8192, {half, half, half});
  const Curve curve = ski_slope(einsum);
  const Ruler ruler(einsum, {kDram, {"shared", 228e3, 132, 30e12}}, 800e12);
  const double traffic[] = {1.5 * curve.at(50e6), 2 * curve.at(228e3)};
  const Verdict verdict = ruler.judge(traffic);
  EXPECT_EQ(verdict.floor_binding, "arithmetic");
  EXPECT_EQ(verdict.floor_seconds, verdict.arithmetic_seconds);
  EXPECT_EQ(verdict.floor_seconds, ruler.floor_seconds());
  EXPECT_LT(verdict.levels[1].bound_bytes, lower_bound(einsum, 228e3));
  EXPECT_THAT(to_string(verdict), HasSubstr("bound by"));
}

TEST(Ruler, drops_only_what_cannot_win) {
  const Ruler ruler(kDecode, {kDram}, 1e15);
  const double traffic[] = {2 * algorithmic_minimum(kDecode)};
  const Verdict verdict = ruler.judge(traffic);
  EXPECT_TRUE(prunes(verdict, 0.99 * verdict.seconds));
  EXPECT_FALSE(prunes(verdict, 1.01 * verdict.seconds));
  EXPECT_TRUE(ruler.finished(1.01 * verdict.floor_seconds));
  EXPECT_FALSE(ruler.finished(1.5 * verdict.floor_seconds));
}

TEST(Ruler, never_drops_the_tile_of_any_point_of_the_curve_below_its_own_bound) {
  const Einsum einsum = matmul(64, 256, 512, {{2, 2}, {0.5, 2, 0.5}, {2, 4}});
  for (const Mapped& best : best_mappings(einsum)) {
    const double capacity = best.point.buffer_bytes;
    const Ruler ruler(einsum, {{"buffer", capacity, 1, 1e12}}, 1e15);
    const double traffic[] = {traffic_bytes(einsum, best.mapping)};
    EXPECT_EQ(ruler.judge(traffic).levels[0].fraction_of_curve, 1);
  }
}

TEST(Ruler, impossible_traffic_and_machines_are_refused) {
  const Ruler ruler(kDecode, {kDram}, 1e15);
  const double too_little[] = {1000}, too_many[] = {1e9, 1e9};
  EXPECT_THAT([&] { ruler.judge(too_little); },
              ThrowsMessage<InvalidArgument>(HasSubstr("less than the")));
  EXPECT_THAT([&] { ruler.judge(too_many); },
              ThrowsMessage<InvalidArgument>(HasSubstr("2 traffics for 1 levels")));
  EXPECT_THROW(Ruler(kDecode, {kDram}, 0), InvalidArgument);
  EXPECT_THROW(Ruler(kDecode, {{"L2", 50e6, 1, 0}}, 1e15), InvalidArgument);
  EXPECT_THROW(Ruler(kDecode, {{"L2", 0, 1, 1e12}}, 1e15), InvalidArgument);
}

TEST(Mesa, is_flat_at_the_peak_and_rises_with_bandwidth) {
  const Einsum einsum = matmul(1024, 1024, 1024);
  const Curve curve = ski_slope(einsum);
  const double ops = static_cast<double>(operations(einsum));
  const Machine machine{1e12, 1e10};
  EXPECT_EQ(performance(curve, ops, machine, 1e9), 1e12);
  EXPECT_EQ(performance(curve, ops, machine, 3), ops / curve.at(3) * 1e10);
  EXPECT_EQ(performance(curve, ops, machine, 2), 0);
  EXPECT_EQ(floor_seconds(curve, ops, machine, 1e9), ops / 1e12);
  EXPECT_EQ(floor_seconds(curve, ops, machine, 2), std::numeric_limits<double>::infinity());
}

TEST(Provision, numbers_that_are_not_positive_are_refused) {
  AreaModel area = paper_area();
  EXPECT_THROW(provisions(Curve(), 1, area), InvalidArgument);
  area.hertz = 0;
  EXPECT_THROW(provisions(Curve({{1, 1}}), 1, area), InvalidArgument);
  EXPECT_THROW(provisions(Curve({{1e12, 1}}), 1, paper_area()), InvalidArgument);
  EXPECT_THROW(provisions(Curve({{1, 1}}), 1, paper_area(), 1), InvalidArgument);
}

}  // namespace
}  // namespace ladder::bounds
