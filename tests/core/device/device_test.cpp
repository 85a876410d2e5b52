// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/hint.h"
#include "device/row.h"
#include "types/element.h"

namespace ladder {
namespace {

TEST(Hint, of_the_a100_is_the_one_worked_out_for_it) {
  EXPECT_EQ(hint(device("a100"), row("mma.m16n8k16.f16")), (Hint{16, {4, 8}}));
}

TEST(Hint, of_the_a100_comes_from_the_layers_of_the_paper) {
  std::vector<std::pair<int, std::vector<std::int64_t>>> layers;
  for (const auto& layer : hint_layers(device("a100"), row("mma.m16n8k16.f16"))) {
    layers.emplace_back(layer.granule_bytes, layer.shape);
  }
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(layers, ElementsAre(Pair(2, ElementsAre(16, 16)), Pair(2, ElementsAre(8, 16)),
                                  Pair(16, ElementsAre(16, 2)), Pair(4, ElementsAre(32)),
                                  Pair(1, ElementsAre(32))));
}

TEST(Hint, of_every_instruction_of_every_device_is_a_multiple_of_all_its_layers) {
  for (const Device& device : devices()) {
    for (const auto* instruction : instructions(device)) {
      const Hint found = hint(device, *instruction);
      EXPECT_EQ(found.run_bytes() % device.global.transaction_bytes, 0) << device.name;
      EXPECT_EQ(found.run_bytes() % device.shared.transaction_bytes, 0) << device.name;
      for (const auto& layer : hint_layers(device, *instruction)) {
        EXPECT_EQ(found.granularity_bytes % layer.granule_bytes, 0) << layer.name;
      }
    }
  }
}

// A matrix operand of 8 bytes a row is shorter than the 16 bytes of a load: two rows share one.
TEST(Hint, of_the_v100_joins_rows_that_are_shorter_than_a_granule) {
  EXPECT_EQ(hint(device("v100"), row("mma.m8n8k4.f16")), (Hint{16, {4, 8}}));
}

TEST(Hint, of_a_processor_is_a_cache_line) {
  EXPECT_EQ(hint(device("x86_avx2"), row("vfmadd231ps.ymm")).run_bytes(), 64);
  EXPECT_EQ(hint(device("x86_avx512"), row("vfmadd231ps.zmm")).run_bytes(), 128);
}

TEST(Device, every_row_has_a_source_and_consistent_capacities) {
  for (const Device& row : devices()) {
    const Sources& s = row.sources;
    for (auto source : {s.capacities, s.bandwidths, s.rates, s.limits}) {
      EXPECT_FALSE(source.empty()) << row.name;
    }
    EXPECT_LE(row.shared_per_block_bytes, row.shared.capacity_bytes) << row.name;
    EXPECT_LT(row.shared.capacity_bytes, row.l2.capacity_bytes) << row.name;
    EXPECT_LT(row.l2.capacity_bytes, row.global.capacity_bytes) << row.name;
    EXPECT_EQ(row.max_cluster > 1, row.capability >= 90) << row.name;
    EXPECT_EQ(row.capability != 0, row.family == Family::nvidia) << row.name;
  }
}

TEST(Device, rates_agree_with_each_other) {
  for (const Device& row : devices()) {
    // The clock that the f32 rate implies is one that such machines have.
    EXPECT_GT(row.clock(), 1e9) << row.name;
    EXPECT_LT(row.clock(), 3e9) << row.name;
    EXPECT_GE(row.f16_flops, row.f32_flops) << row.name;
    if (row.family == Family::x86) continue;
    // Multiply-adds of a multiprocessor's matrix units in a cycle: Ada's 256 to Blackwell's 4096,
    // the clock being a boost clock.
    const double per_cycle = row.f16_flops / (2 * row.clock() * row.multiprocessors);
    EXPECT_GE(per_cycle, 250) << row.name;
    EXPECT_LE(per_cycle, 4096) << row.name;
    for (double rate : {row.f8_flops, row.i8_flops}) {
      EXPECT_TRUE(rate == 0 || rate >= row.f16_flops) << row.name;
    }
  }
}

TEST(Device, every_machine_of_the_table_of_the_issue_is_there) {
  for (const char* name :
       {"v100", "t4", "a100", "a6000", "rtx4090", "l40s", "h100", "h200", "b200", "rtx5090",
        "mi210", "mi250", "mi300x", "mi355x", "rx7900xtx", "rx9070xt", "x86_avx2", "x86_avx512"}) {
    EXPECT_NO_THROW(device(name)) << name;
    EXPECT_THAT(to_string(device(name)), testing::HasSubstr("  sources:\n    capacities: "));
  }
}

TEST(Device, an_unknown_name_is_refused_with_the_known_ones) {
  EXPECT_THAT([] { device("h300"); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("h200")));
}

TEST(Instructions, every_device_has_one_for_f16_or_f32_and_a_load_for_it) {
  for (const Device& device : devices()) {
    EXPECT_FALSE(instructions(device).empty()) << device.name;
    EXPECT_FALSE(copies(device).empty()) << device.name;
    for (const auto* row : instructions(device)) EXPECT_NO_THROW(element(row->operand));
  }
}

TEST(Instructions, come_fastest_first) {
  EXPECT_EQ(instructions(device("h100"), "float16").front()->name, "wgmma.m64nNk16.f16");
  EXPECT_EQ(instructions(device("a100"), "float16").front()->name, "mma.m16n8k16.f16");
  EXPECT_EQ(instructions(device("t4"), "int8").back()->name, "mma.m8n8k16.s8");
  EXPECT_TRUE(instructions(device("t4"), "bfloat16").empty());
  EXPECT_TRUE(instructions(device("a100"), "float8_e4m3").empty());
  EXPECT_EQ(instructions(device("mi300x"), "float8_e4m3fnuz").size(), 2);
}

TEST(Instructions, warpgroups_of_tile_programs_have_those_of_halves_and_bytes_on_hopper) {
  for (const char* hopper : {"h100", "h200"}) {
    const auto name = [&](Scalar operand) {
      const auto* row = warpgroup_instruction(operand, device(hopper));
      return row == nullptr ? "" : row->name;
    };
    EXPECT_EQ(name(Scalar::f16), "wgmma.m64nNk16.f16") << hopper;
    EXPECT_EQ(name(Scalar::bf16), "wgmma.m64nNk16.bf16") << hopper;
    EXPECT_EQ(name(Scalar::s8), "wgmma.m64nNk32.s8") << hopper;
    EXPECT_EQ(name(Scalar::e4m3), "wgmma.m64nNk32.e4m3") << hopper;
  }
  for (const char* other : {"t4", "a100", "l40s", "b200", "rtx5090", "mi210", "mi300x"}) {
    for (const Scalar operand : {Scalar::f16, Scalar::bf16, Scalar::s8, Scalar::e4m3}) {
      EXPECT_EQ(warpgroup_instruction(operand, device(other)), nullptr) << other;
    }
  }
}

// As fragments of the later instruction are, so that programs need not know.
TEST(Instructions, of_turing_multiply_tiles_side_by_side) {
  for (const Scalar operand : {Scalar::f16, Scalar::s8}) {
    const MatrixInstruction& turing = *tile_instruction(operand, device("t4"));
    const MatrixInstruction& ampere = *tile_instruction(operand);
    EXPECT_THAT(turing.name, testing::HasSubstr(" x mma.m"));
    EXPECT_EQ(std::tuple(turing.m, turing.n, turing.k), std::tuple(ampere.m, ampere.n, ampere.k));
    EXPECT_EQ(turing.a(), ampere.a());
    EXPECT_EQ(turing.b(), ampere.b());
    EXPECT_EQ(turing.d(), ampere.d());
  }
  EXPECT_EQ(tile_instruction(Scalar::bf16, device("t4")), nullptr);
  EXPECT_EQ(tile_instruction(Scalar::e4m3, device("t4")), nullptr);
  EXPECT_EQ(first_tile_instruction(Family::nvidia).architecture, 70);
}

// Not as those of a later one are: programs of waves multiply by it, and by no other on Volta.
TEST(Instructions, of_volta_multiply_by_quad_pairs) {
  const MatrixInstruction& volta = *tile_instruction(Scalar::f16, device("v100"));
  EXPECT_EQ(std::tuple(volta.m, volta.n, volta.k), std::tuple(16, 16, 16));
  EXPECT_TRUE(volta.by_waves());
  EXPECT_EQ(volta.lanes(), 32);
  for (const Scalar operand : {Scalar::bf16, Scalar::s8, Scalar::e4m3}) {
    EXPECT_EQ(tile_instruction(operand, device("v100")), nullptr);
  }
}

// One name of a builtin function, two formats.
TEST(Instructions, of_float8_read_fnuz_on_cdna_3_and_ocp_behind_it) {
  EXPECT_EQ(tile_instruction(Scalar::e4m3, device("mi210")), nullptr);
  for (const auto& [name, read] :
       {std::pair{"mi300x", Scalar::e4m3fnuz}, {"mi355x", Scalar::e4m3}}) {
    const MatrixInstruction* row = tile_instruction(Scalar::e4m3, device(name));
    ASSERT_NE(row, nullptr) << name;
    EXPECT_EQ(row->name, "v_mfma_f32_16x16x32_fp8_fp8");
    EXPECT_EQ(operand_scalar(*row), read) << name;
    EXPECT_EQ(row->accumulator_bits, 24);
  }
}

TEST(Instructions, cdna_4_reaches_its_rate_by_instructions_of_twice_the_depth) {
  for (const MatrixInstruction* row : instructions(device("mi355x"))) {
    const bool deep = row->m * row->k * row->operand_bits() >= 16 * 32 * 16;
    EXPECT_EQ(reached_share(device("mi355x"), *row), deep ? 1 : 0.5) << row->name;
  }
  for (const MatrixInstruction* row : instructions(device("mi300x"))) {
    EXPECT_EQ(reached_share(device("mi300x"), *row), 1) << row->name;
  }
}

TEST(Instructions, asynchronous_copies_came_with_sm_80) {
  EXPECT_FALSE(device("t4").async_copy());
  EXPECT_TRUE(device("t4").copies_to_shared());
  EXPECT_TRUE(device("a100").copies_to_shared());
  EXPECT_FALSE(device("v100").copies_to_shared());
  EXPECT_FALSE(device("mi210").copies_to_shared());
  EXPECT_TRUE(device("a100").async_copy());
  EXPECT_FALSE(device("mi210").async_copy());
  EXPECT_EQ(copy_instruction(device("a100"), "cp.async.bulk"), nullptr);
  EXPECT_NE(copy_instruction(device("h200"), "cp.async.bulk"), nullptr);
}

}  // namespace
}  // namespace ladder
