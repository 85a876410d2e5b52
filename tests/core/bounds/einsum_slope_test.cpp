// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "bounds/mesa.h"
#include "bounds/slope.h"
#include "walk.h"

namespace ladder::bounds {
namespace {

constexpr Conv2d kConv{.in_channels = 64, .out_channels = 64, .height = 16, .width = 16};

Einsum conv(int kernel, int stride = 1, int dilation = 1) {
  Conv2d c = kConv;
  c.kernel_height = c.kernel_width = kernel;
  c.stride = stride;
  c.dilation = dilation;
  return conv2d(c);
}

TEST(ConvolutionSlope, ends_of_the_five_convolutions_of_figure_twelve) {
  const auto end = [](const Einsum& einsum) { return ski_slope(einsum, kPaper).max_effectual(); };
  EXPECT_EQ(end(conv(1)), (Point{4224, 36864}));
  EXPECT_EQ(end(conv(3)), (Point{16864, 73984}));
  EXPECT_EQ(end(conv(5)), (Point{17024, 144384}));
  EXPECT_EQ(end(conv(3, 2)), (Point{17599, 122944}));
  EXPECT_EQ(end(conv(3, 1, 2)), (Point{16896, 78848}));
}

TEST(ConvolutionSlope, effectual_buffers_are_the_shares_of_figure_eleven) {
  const auto percent = [](const Einsum& einsum) {
    return 100 * ski_slope(einsum, kPaper).max_effectual().buffer_bytes /
           algorithmic_minimum(einsum);
  };
  EXPECT_NEAR(percent(conv(1)), 11, 0.5);
  EXPECT_NEAR(percent(conv(3)), 23, 0.5);
  EXPECT_NEAR(percent(conv(3, 2)), 14, 0.5);
  EXPECT_NEAR(percent(conv(5)), 12, 0.5);
}

TEST(ConvolutionSlope, of_three_by_three_keeps_what_windows_share) {
  const Curve curve = ski_slope(conv(3), kPaper);
  EXPECT_EQ(curve.at(3), 18890752);
  EXPECT_EQ(curve.at(5), 11026432);  // 14172160 if every window were loaded whole
  EXPECT_EQ(curve.at(7), 9850880);
  EXPECT_EQ(curve.at(8), 7880704);
}

TEST(ConvolutionSlope, has_the_points_that_the_artifact_lost) {
  std::vector<double> sizes;
  for (const Point& p : ski_slope(conv(3), kPaper).points()) sizes.push_back(p.buffer_bytes);
  EXPECT_THAT(sizes, testing::IsSupersetOf({80.0, 152.0, 296.0}));
}

TEST(ConvolutionSlope, peaks_of_operational_intensity) {
  const auto peak = [](const Einsum& einsum) {
    return intensity(ski_slope(einsum, kPaper), static_cast<double>(operations(einsum)), 1e9);
  };
  EXPECT_NEAR(peak(conv(1)), 56.4444, 5e-5);
  EXPECT_NEAR(peak(conv(3)), 254.893, 5e-4);
  EXPECT_NEAR(peak(conv(5)), 363.007, 5e-4);
  EXPECT_NEAR(peak(conv(3, 2)), 153.387, 5e-4);
  EXPECT_NEAR(peak(conv(3, 1, 2)), 239.169, 5e-4);
}

TEST(BatchedSlope, head_sweep_of_figure_thirteen_shares_one_weight) {
  const auto end = [](std::int64_t heads) {
    return ski_slope(grouped_matmul(heads, 1, 4096, 4096, 4096 / heads), kPaper).max_effectual();
  };
  EXPECT_EQ(end(1), (Point{16785408, 50331648}));
  EXPECT_EQ(end(8), (Point{2101760, 153092096}));
  EXPECT_EQ(end(32), (Point{528512, 554172416}));
  EXPECT_EQ(end(128), (Point{135200, 2164391936}));
  const auto peak = [](std::int64_t heads) {
    const Einsum einsum = grouped_matmul(heads, 1, 4096, 4096, 4096 / heads);
    return intensity(ski_slope(einsum, kPaper), static_cast<double>(operations(einsum)), 1e12);
  };
  EXPECT_NEAR(peak(1), 2730.33, 0.005);
  EXPECT_NEAR(peak(8), 896.877, 5e-4);
  EXPECT_NEAR(peak(32), 247.039, 5e-4);
  EXPECT_NEAR(peak(128), 62.508, 5e-4);
}

TEST(BatchedSlope, separate_weights_of_all_heads_are_all_read) {
  EXPECT_EQ(ski_slope(batched_matmul(32, 4096, 4096, 128), kPaper).max_effectual(),
            (Point{528512, 570425344}));
}

TEST(GroupedSlope, groups_change_the_end_and_not_the_start) {
  const double ends[][2] = {{1, 554172416}, {8, 557842432}, {32, 570425344}};
  for (const auto& [groups, traffic] : ends) {
    const Curve curve =
        ski_slope(grouped_matmul(32, static_cast<std::int64_t>(groups), 4096, 4096, 128), kPaper);
    EXPECT_EQ(curve.points()[0], (Point{3, 137975824384}));
    EXPECT_EQ(curve.max_effectual(), (Point{528512, traffic}));
  }
}

std::vector<Einsum> small_einsums() {
  Einsum outer{{{"M", 6}, {"N", 8}, {"K", 4}, {"J", 4}},
               {{"a", {{{0}}, {{2}}}},
                {"b", {{{2}}, {{3}}}},
                {"c", {{{1}}, {{3}}}},
                {"o", {{{0}}, {{1}}}, true}}};  // three inputs
  Einsum strip{{{"M", 6}, {"K", 8}}, {{"a", {{{0}, {1, 2}}}}, {"o", {{{0}}}, true}}};
  return {outer,
          strip,
          batched_matmul(4, 6, 4, 4),
          grouped_matmul(6, 2, 4, 4, 6),
          conv1d({.in_channels = 4, .out_channels = 4, .width = 12, .kernel_width = 4}),
          conv1d({.batch = 2,
                  .in_channels = 2,
                  .out_channels = 4,
                  .width = 8,
                  .kernel_width = 2,
                  .stride = 3}),
          conv2d({.in_channels = 2,
                  .out_channels = 4,
                  .height = 4,
                  .width = 4,
                  .kernel_height = 3,
                  .kernel_width = 2,
                  .stride = 2}),
          conv2d({.in_channels = 2,
                  .out_channels = 2,
                  .height = 4,
                  .width = 6,
                  .kernel_height = 2,
                  .kernel_width = 3,
                  .dilation = 2})};
}

TEST(EinsumSlope, few_orders_give_the_curve_of_all_orders) {
  for (const Einsum& einsum : small_einsums()) {
    for (const Factors factors : {Factors::divisors, Factors::integers}) {
      for (const Space space : {Space::uniform, Space::streaming}) {
        EXPECT_EQ(ski_slope(einsum, {factors, space}).points(),
                  exhaustive_slope(einsum, {factors, space}).points());
      }
    }
  }
}

TEST(EinsumSlope, traffic_of_any_mapping_is_what_a_walk_of_its_loops_counts) {
  std::mt19937 random(3);
  for (const Einsum& einsum : small_einsums()) {
    for (int i = 0; i < 60; ++i) {
      Mapping mapping;
      const int ranks = static_cast<int>(einsum.ranks.size());
      for (int r = 0; r < ranks; ++r) {
        mapping.tile[r] = static_cast<std::int64_t>(random() % einsum.ranks[r].size + 1);
        mapping.order[r] = static_cast<std::int8_t>(r);
      }
      std::shuffle(mapping.order.begin(), mapping.order.begin() + ranks, random);
      EXPECT_EQ(traffic_bytes(einsum, mapping), walked_traffic(einsum, mapping));
    }
  }
}

TEST(EinsumSlope, its_points_have_mappings_that_attain_them) {
  for (const Einsum& einsum : small_einsums()) {
    for (const Space space : {Space::uniform, Space::streaming}) {
      for (const Mapped& best : best_mappings(einsum, {Factors::integers, space})) {
        EXPECT_EQ(traffic_bytes(einsum, best.mapping), best.point.traffic_bytes);
        EXPECT_EQ(buffer_bytes(einsum, best.mapping, space), best.point.buffer_bytes);
      }
    }
  }
}

TEST(EinsumSlope, a_matmul_in_disguise_has_its_curve) {
  const Einsum pointwise = conv2d({.in_channels = 24, .out_channels = 36, .width = 10});
  for (const Space space : {Space::uniform, Space::streaming}) {
    EXPECT_EQ(ski_slope(pointwise, {Factors::divisors, space}).at(200),
              ski_slope(matmul(10, 36, 24), {Factors::divisors, space}).at(200));
  }
  EXPECT_EQ(ski_slope(batched_matmul(5, 24, 36, 10)).points(),
            ski_slope(matmul(24, 36, 10)).scaled(1, 5).points());
}

}  // namespace
}  // namespace ladder::bounds
