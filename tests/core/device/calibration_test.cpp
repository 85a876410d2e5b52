// SPDX-License-Identifier: Apache-2.0
//
// What a calibration may say, and what a row takes of it.
#include "device/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "integer_layer.h"
#include "pipelines/schedule.h"
#include "schedule/decisions.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

/// Every number is what no row and no other field has, within its range.
Calibration some() {
  Calibration out;
  int at = 0;
  for (const CalibrationField& field : calibration_fields()) {
    field.of(out) = std::sqrt(field.low * field.high) * (1 + 0.01 * ++at);
  }
  out.read_bytes_per_second = 3e12;
  out.dependent_seconds = out.launch_seconds / 2;
  return out;
}

TEST(Calibration, has_a_name_and_a_place_for_each_number) {
  std::set<std::string_view> names;
  std::set<const double*> places;
  Calibration calibration;
  for (const CalibrationField& field : calibration_fields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_TRUE(places.insert(&field.of(calibration)).second) << field.name;
    EXPECT_LT(field.low, field.high) << field.name;
  }
  EXPECT_EQ(places.size() * sizeof(double), sizeof(Calibration));
}

TEST(Calibration, of_a_number_that_no_machine_has_is_refused_with_both_values) {
  const Device& row = device("h200");
  EXPECT_EQ(objection(some(), row), "");
  EXPECT_EQ(objection({}, row), "it has no numbers");
  for (const CalibrationField& field : calibration_fields()) {
    for (double bad :
         {field.low / 2, field.high * 2, -field.high, std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN()}) {
      Calibration calibration = some();
      field.of(calibration) = bad;
      const auto why = objection(calibration, row);
      EXPECT_THAT(why, HasSubstr(std::string(field.name) + " is ")) << bad;
      EXPECT_THAT(why, HasSubstr(", not from ")) << bad;
    }
  }
}

TEST(Calibration, of_another_machines_memory_is_refused_with_both_rates) {
  Calibration calibration = some();
  calibration.read_bytes_per_second = 4.5e12;
  EXPECT_EQ(objection(calibration, device("l40s")),
            "read_bytes_per_second is 4.5e+12 B/s, where the row has 8.64e+11");
  calibration.read_bytes_per_second = 1e10;
  EXPECT_THAT(objection(calibration, device("h200")),
              HasSubstr("1e+10 B/s, where the row has 4.5"));
}

// What a first version of the command measured: cycles of a warp that the scheduler favoured.
TEST(Calibration, of_which_numbers_contradict_each_other_is_refused_with_both) {
  const Device& row = device("h100");
  Calibration calibration;
  calibration.warps[0] = {615.7e12, 2719.6}, calibration.warpgroups[0] = {874.7e12, 2048};
  EXPECT_EQ(objection(calibration, row), "mma.float16.lanes is 2719.6, more than 2048 of wgmma");
  calibration.warps[0].lanes = 1330;
  EXPECT_EQ(objection(calibration, row), "");
  calibration.warpgroups[0].flops = 1.3e15;
  EXPECT_THAT(
      objection(calibration, row),
      HasSubstr("wgmma.float16.flops is 1.3e+15, more than 2048 multiply-adds in each of "));
}

TEST(Calibration, is_shown_beside_what_the_row_has) {
  for (const Device& row : devices()) {
    for (const CalibrationField& field : calibration_fields()) {
      const double number = number_of_row(row, field);
      EXPECT_TRUE(number == 0 || (field.low <= number && number <= field.high))
          << row.name << ", " << field.name << ": " << number;
    }
  }
  const auto shown = [](std::string_view name) {
    const auto fields = calibration_fields();
    return number_of_row(device("h100"), *std::ranges::find(fields, name, &CalibrationField::name));
  };
  EXPECT_EQ(shown("read_bytes_per_second"), 3350e9);
  EXPECT_EQ(shown("mma.float16.flops"), 761e12 * 0.61);
  EXPECT_EQ(shown("wgmma.float16.lanes"), 2048);
  EXPECT_EQ(shown("latency_seconds"), 0);
}

TEST(Calibrated, row_without_numbers_is_the_row) {
  for (const Device& row : devices()) {
    const Device same = calibrated(row, {}, some());
    EXPECT_EQ(to_string(same), to_string(row));
    EXPECT_EQ(fitted::carried_to(same).matrix, fitted::carried_to(row).matrix);
    EXPECT_EQ(same.costs.tiles.launch_seconds, row.costs.tiles.launch_seconds);
  }
}

TEST(Calibrated, instructions_have_the_rates_that_were_measured) {
  Calibration c = some();
  for (MatrixRate& rate : c.warps) rate.lanes /= 4;
  for (const Device& row : devices()) {
    if (row.family != Family::nvidia) continue;
    const Device made = calibrated(row, c, {});
    for (std::size_t i = 0; i < kMatrixOperands.size(); ++i) {
      for (const MatrixInstruction* each : instructions(made, kMatrixOperands[i])) {
        const double rate = operations_per_second(made, *each);
        if (each->fragment == Fragment::warpgroup) {
          EXPECT_EQ(rate, c.warpgroups[i].flops) << row.name << ", " << each->name;
        } else if (each->fragment == Fragment::warp) {
          // Beside warpgroups by cycles: clocks fall under them.
          EXPECT_DOUBLE_EQ(rate, c.warpgroups[i].flops * c.warps[i].lanes / c.warpgroups[i].lanes);
        }
      }
    }
  }
}

TEST(Calibrated, instructions_of_warps_alone_are_the_rate_of_the_device) {
  Calibration c = some();
  c.warpgroups = {};
  for (const char* name : {"a6000", "rtx4090", "t4"}) {
    const Device made = calibrated(device(name), c);
    for (std::size_t i = 0; i < kMatrixOperands.size(); ++i) {
      for (const MatrixInstruction* each : instructions(made, kMatrixOperands[i])) {
        EXPECT_EQ(operations_per_second(made, *each), c.warps[i].flops) << name << each->name;
      }
    }
    EXPECT_EQ(made.f16_lanes, std::lround(c.warps[0].lanes)) << name;
  }
}

// Tensor memory's rate is nothing that ladder calibrate measures.
TEST(Calibrated, rate_of_faster_instructions_stays_where_only_warps_were_measured) {
  Calibration c = some();
  c.warpgroups = {};
  c.warps[0] = {600e12, 800};
  const Device& row = device("b200");
  const Device made = calibrated(row, c);
  EXPECT_EQ(made.f16_flops, row.f16_flops);
  for (const MatrixInstruction* each : instructions(made, "float16")) {
    EXPECT_DOUBLE_EQ(operations_per_second(made, *each), 600e12) << each->name;
  }
  // 2048 multiply-adds of a scheduler's quarter of 800.
  EXPECT_NEAR(fitted::carried_to(made).matrix - row.costs.decode.matrix,
              10.24 - row.costs.at.matrix_cycles, 0.01);
}

TEST(Calibrated, costs_are_carried_by_what_was_measured_where_they_were_fitted) {
  const Device& row = device("h200");
  const Calibration known = some();
  Calibration c = known;
  const auto same = calibrated(row, c, known);
  EXPECT_DOUBLE_EQ(same.clock(), row.clock());
  EXPECT_DOUBLE_EQ(same.fill_bytes, row.fill_bytes);
  EXPECT_DOUBLE_EQ(same.f16_flops, row.f16_flops);
  EXPECT_DOUBLE_EQ(same.i8_flops, row.i8_flops);
  for (const auto cost : {
           +[](const Costs& k) { return k.decode.decoding; },
           +[](const Costs& k) { return k.decode.hiding_warps; },
           +[](const Costs& k) { return k.decode.ways[0].fixed; },
           +[](const Costs& k) { return k.decode.ways[2].cluster; },
           +[](const Costs& k) { return k.tiles.beside; },
           +[](const Costs& k) { return k.tiles.bytes_in_flight; },
           +[](const Costs& k) { return k.tiles.launch_seconds; },
           +[](const Costs& k) { return k.tiles.ticket_seconds; },
           +[](const Costs& k) { return k.warpgroups.fill_bytes; },
           +[](const Costs& k) { return k.warpgroups.cluster_seconds; },
           +[](const Costs& k) { return k.warpgroups.weights_ahead_seconds; },
           +[](const Costs& k) { return k.dense.launch_seconds; },
       }) {
    EXPECT_DOUBLE_EQ(cost(same.costs), cost(row.costs));
  }
  c.clock /= 2, c.l2_bytes_per_second /= 4, c.integer_lanes *= 2, c.latency_seconds *= 3;
  c.ticket_seconds *= 5, c.cluster_seconds *= 7, c.warpgroups[3].flops /= 2;
  const auto other = calibrated(row, c, known);
  EXPECT_DOUBLE_EQ(other.clock(), row.clock() / 2);
  EXPECT_DOUBLE_EQ(other.f8_flops, row.f8_flops / 2);
  EXPECT_DOUBLE_EQ(other.fill_bytes, row.fill_bytes / 2);  // of a cycle
  EXPECT_DOUBLE_EQ(other.costs.warpgroups.fill_bytes, row.costs.warpgroups.fill_bytes / 2);
  EXPECT_DOUBLE_EQ(other.costs.decode.decoding, row.costs.decode.decoding / 2);
  EXPECT_DOUBLE_EQ(other.costs.warpgroups.decoding, row.costs.warpgroups.decoding / 2);
  EXPECT_DOUBLE_EQ(other.costs.decode.wave_bytes, 3 * row.costs.decode.wave_bytes);
  EXPECT_DOUBLE_EQ(other.costs.tiles.ticket_seconds, 5 * row.costs.tiles.ticket_seconds);
  EXPECT_DOUBLE_EQ(other.costs.decode.ways[2].cluster, 7 * row.costs.decode.ways[2].cluster);
}

TEST(Calibrated, launches_take_as_much_longer_as_they_were_measured_to) {
  const Device& row = device("h200");
  Calibration known, c;
  known.launch_seconds = 3e-6, known.dependent_seconds = 2e-6;
  c.launch_seconds = 4e-6, c.dependent_seconds = 3.5e-6;
  const auto slow = calibrated(row, c, known);
  EXPECT_DOUBLE_EQ(slow.costs.decode.ways[0].fixed, row.costs.decode.ways[0].fixed + 1);
  EXPECT_DOUBLE_EQ(slow.costs.tiles.launch_seconds, row.costs.tiles.launch_seconds + 1e-6);
  EXPECT_DOUBLE_EQ(slow.costs.dense.launch_seconds, row.costs.dense.launch_seconds + 2e-6);
  EXPECT_DOUBLE_EQ(slow.costs.warpgroups.weights_ahead_seconds,
                   row.costs.warpgroups.weights_ahead_seconds / 2);
  c.launch_seconds = 1e-7;
  EXPECT_GT(calibrated(row, c, known).costs.decode.ways[3].fixed, 0);
}

// A number that repeats to some per cent moves no choice by them.
TEST(Calibrated, numbers_within_a_tenth_of_the_rows_leave_the_row) {
  const Device& row = device("h100");
  for (double factor : {0.92, 1.08}) {
    Calibration c = kFittedOn;
    c.read_bytes_per_second = row.global.bytes_per_second;
    c.warps[0] = {row.f16_flops * row.warp_share, row.f16_lanes * row.warp_share};
    for (const CalibrationField& field : calibration_fields()) field.of(c) *= factor;
    // A share is one number over another.
    c.warps[0].lanes = factor * row.f16_lanes * row.warp_share;
    c.warpgroups[0].lanes = row.f16_lanes;
    c.l2_bytes_per_second = kFittedOn.l2_bytes_per_second, c.clock = kFittedOn.clock * factor;
    c.dependent_seconds =
        c.launch_seconds - (kFittedOn.launch_seconds - kFittedOn.dependent_seconds);
    const Device made = calibrated(row, c);
    EXPECT_EQ(made.global.bytes_per_second, row.global.bytes_per_second);
    EXPECT_EQ(made.f16_flops, row.f16_flops);
    EXPECT_EQ(made.clock(), row.clock());
    EXPECT_EQ(made.fill_bytes, row.fill_bytes);
    EXPECT_EQ(fitted::carried_to(made).matrix, fitted::carried_to(row).matrix);
    EXPECT_EQ(made.costs.decode.ways[0].fixed, row.costs.decode.ways[0].fixed);
    EXPECT_EQ(made.costs.tiles.ticket_seconds, row.costs.tiles.ticket_seconds);
    EXPECT_EQ(made.costs.warpgroups.weights_ahead_seconds,
              row.costs.warpgroups.weights_ahead_seconds);
  }
}

// What comes from L2 takes as long as before.
TEST(Calibrated, memory_is_read_at_the_rate_that_was_measured) {
  const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 16, 8192, 8192);
  const Device& row = device("h200");
  Calibration c;
  c.read_bytes_per_second = row.global.bytes_per_second / 2;
  const Device slow = calibrated(row, c);
  const auto schedule = best_schedule(decide(problem, row));
  const double longer = cost(schedule, decide(problem, slow)).memory_seconds -
                        cost(schedule, decide(problem, row)).memory_seconds;
  const double once = least_bytes(problem, problem.m) / row.global.bytes_per_second;
  EXPECT_NEAR(longer / once, 1, 1e-12);
}

}  // namespace
}  // namespace ladder
