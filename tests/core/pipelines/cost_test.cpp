// SPDX-License-Identifier: Apache-2.0
//
// What the estimate takes from the row of a device, and what it keeps from the one it was fitted
// on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "integer_layer.h"
#include "pipelines/schedule.h"
#include "schedule/decisions.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

using fitted::carried_to;

const fitted::WayModel& kModel = fitted::model_of(fitted::Way::at_once);
const WayCosts& kOneRound = kFittedCosts.decode.ways[0];

const Problem kProblem = testing::integer_layer(4, 8, 128, Scalar::f16, 16, 8192, 8192);

Cost of(const DecodeSchedule& schedule, const Device& device) {
  return cost(schedule, decide(kProblem, device));
}

TEST(Fitted, constants_are_what_they_are_on_the_device_on_which_they_were_fitted) {
  const auto carried = carried_to(device("h200"));
  EXPECT_EQ(carried.clock, kFittedCosts.clock);
  EXPECT_EQ(carried.matrix, kFittedCosts.decode.matrix);
  EXPECT_EQ(carried.from_l2, 1);
  EXPECT_EQ(carried.hidden, 1);
  EXPECT_EQ(carried.wave_bytes, kFittedCosts.decode.wave_bytes);
  EXPECT_EQ(carried.hiding_warps, kFittedCosts.decode.hiding_warps);
  const Device& row = device("h200");
  const Costs::Machine& at = kFittedCosts.at;
  EXPECT_EQ(at.multiprocessors, row.multiprocessors);
  EXPECT_EQ(at.clock, row.clock());
  const double schedulers = row.multiprocessors * row.schedulers;
  EXPECT_DOUBLE_EQ(at.warp_flops, row.f16_flops * row.warp_share / schedulers);
  EXPECT_DOUBLE_EQ(at.warp_integer_flops, row.i8_flops * row.warp_shares[2] / schedulers);
  const double flops[] = {row.f16_flops, row.bf16_flops, row.i8_flops, row.f8_flops};
  for (std::size_t i = 0; i < std::size(flops); ++i) {
    EXPECT_DOUBLE_EQ(at.warpgroup_flops[i], flops[i]);
  }
}

TEST(Fitted, what_a_row_does_not_say_counts_as_on_the_device_on_which_they_were_fitted) {
  Device unknown = device("a100");
  unknown.f16_lanes = unknown.fill_bytes = 0;
  EXPECT_EQ(carried_to(unknown).matrix, kFittedCosts.decode.matrix);
  EXPECT_EQ(carried_to(unknown).from_l2, 1);
  // Instructions without tensor memory reach a part of its rate that nobody publishes.
  EXPECT_EQ(carried_to(device("b200")).matrix, kFittedCosts.decode.matrix);
}

// 2048 multiply-adds by 256 of a quarter on the A100, by 64 on the RTX 4090: 24 clocks apart.
TEST(Fitted, matrix_instructions_take_the_cycles_of_the_row_longer) {
  EXPECT_DOUBLE_EQ(carried_to(device("rtx4090")).matrix - carried_to(device("a100")).matrix, 24);
}

TEST(Cost, instructions_take_the_clock_of_the_row) {
  const auto schedule = std::get<DecodeSchedule>(best_schedule(decide(kProblem, device("h200"))));
  Device slow = device("h200");
  slow.f32_flops /= 2;
  EXPECT_DOUBLE_EQ(of(schedule, slow).issue_seconds,
                   2 * of(schedule, device("h200")).issue_seconds);
  EXPECT_DOUBLE_EQ(of(schedule, slow).shared_seconds,
                   2 * of(schedule, device("h200")).shared_seconds);
}

TEST(Cost, instructions_share_the_schedulers_of_the_row) {
  const auto schedule = std::get<DecodeSchedule>(best_schedule(decide(kProblem, device("h200"))));
  // Half as many with the matrix units of half as many.
  Device narrow = device("h200");
  narrow.schedulers /= 2, narrow.f16_lanes /= 2;
  EXPECT_DOUBLE_EQ(of(schedule, narrow).issue_seconds,
                   2 * of(schedule, device("h200")).issue_seconds);
  EXPECT_EQ(of(schedule, narrow).shared_seconds, of(schedule, device("h200")).shared_seconds);
}

TEST(Cost, what_is_read_again_takes_the_rate_of_l2) {
  const auto schedule = std::get<DecodeSchedule>(best_schedule(decide(kProblem, device("h200"))));
  const auto seconds = [&](int fill_bytes) {
    Device device = ladder::device("h200");
    device.fill_bytes = fill_bytes;
    return of(schedule, device).memory_seconds;
  };
  const double once = least_bytes(kProblem, kProblem.m) / device("h200").global.bytes_per_second;
  EXPECT_GT(seconds(64), once);
  // seconds(32) - once is twice seconds(64) - once, without a difference that loses digits.
  EXPECT_DOUBLE_EQ(seconds(32) + once, 2 * seconds(64));
}

// Little's law: half the bandwidth of a multiprocessor has half as much on its way.
TEST(Cost, fewer_warps_hide_the_latency_of_a_slower_memory) {
  Device slow = device("h200");
  slow.global.bytes_per_second /= 2;
  const DecodeSchedule schedule{.tokens = 16,
                                .warps_n = 1,
                                .warps_k = 8,
                                .blocks_per_warp = 2,
                                .reduction = Reduction::ordered};
  // Times what memory and instructions take together.
  const auto hidden = [&](const Device& device) {
    const Cost c = of(schedule, device);
    const double overlap = kModel.overlap;
    const double both = std::pow(c.memory_seconds, overlap) +
                        std::pow(std::max(c.issue_seconds, c.shared_seconds), overlap);
    return (c.seconds - c.fixed_seconds) / std::pow(both, 1 / overlap);
  };
  // Eight warps: half of what the one needs, enough for the other.
  const double rounded = 64 * std::numeric_limits<double>::epsilon();  // in a difference and powers
  EXPECT_NEAR(hidden(device("h200")), std::pow(2, kModel.latency), rounded);
  EXPECT_NEAR(hidden(slow), 1, rounded);
}

// Of the same latency at half the rate, half as many bytes are on their way.
TEST(Cost, blocks_that_load_all_at_once_begin_by_what_they_load) {
  Device slow = device("h200");
  slow.global.bytes_per_second /= 2;
  EXPECT_EQ(carried_to(slow).wave_bytes, kFittedCosts.decode.wave_bytes / 2);
  DecodeSchedule schedule{.tokens = 16,
                          .warps_n = 1,
                          .warps_k = 8,
                          .blocks_per_warp = 8,
                          .reduction = Reduction::ordered};
  const auto share = static_cast<double>(schedule.tile_rows() * schedule.cta_columns()) *
                     kProblem.weight.bits / 8 / kFittedCosts.decode.wave_bytes;
  ASSERT_GT(share, 1);
  const auto waves = static_cast<double>(schedule.tiles(kProblem.n) * schedule.splits(kProblem.k)) /
                     device("h200").multiprocessors;
  ASSERT_GT(waves, 1);
  const auto begin = [&](double per_wave) { return 1e-6 * (kOneRound.fixed + per_wave * waves); };
  EXPECT_DOUBLE_EQ(of(schedule, device("h200")).fixed_seconds, begin(kOneRound.per_wave * share));
  EXPECT_DOUBLE_EQ(of(schedule, slow).fixed_seconds, begin(kOneRound.per_wave * 2 * share));
}

TEST(Cost, of_a_table_is_filled_at_the_clock_of_the_row) {
  Problem table = kProblem;
  testing::set_element(table, element("nf4"));
  Device slow = device("h200");
  slow.f32_flops /= 2;
  const auto schedule = best_schedule(decide(table, device("h200")));
  EXPECT_GT(cost(schedule, decide(table, slow)).fixed_seconds,
            cost(schedule, decide(table, device("h200"))).fixed_seconds);
  const auto integers = std::get<DecodeSchedule>(best_schedule(decide(kProblem, device("h200"))));
  EXPECT_EQ(of(integers, slow).fixed_seconds, of(integers, device("h200")).fixed_seconds);
}

// Rates of mma.sync on a B200 are not published.
TEST(Cost, of_tiles_is_finite_on_every_device_and_falls_with_the_matrix_rate) {
  for (const char* name : {"a100", "rtx4090", "h200", "b200"}) {
    const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 64, 8192, 8192);
    const auto decisions = decide(problem, device(name));
    const auto all = tile_space(decisions, false);
    ASSERT_FALSE(all.empty());
    for (const TileSchedule& schedule : all) {
      ASSERT_TRUE(std::isfinite(cost(schedule, decisions).seconds)) << name << to_string(schedule);
    }
  }
  const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 128, 8192, 8192);
  Device slow = device("h200");
  slow.f16_flops /= 2;
  const auto schedule = tile_space(decide(problem, slow), false).front();
  EXPECT_GT(cost(schedule, decide(problem, slow)).issue_seconds,
            1.5 * cost(schedule, decide(problem, device("h200"))).issue_seconds);
}

}  // namespace
}  // namespace ladder
