// SPDX-License-Identifier: Apache-2.0
// Machines as AMD's driver has them, and their rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "fakes/driver.h"
#include "fakes/fakes.h"
#include "fakes/hip.h"
#include "runtime/device_row.h"
#include "runtime/gpus.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void become_mi300x(int ordinal) {
  fake::Machine& m = fake::machine(ordinal);
  m.name = "AMD Instinct MI300X";
  m.architecture = "gfx942:sramecc+:xnack-";
  m.multiprocessors = 304;
  m.clock_khz = 2100000;
  m.memory_bytes = 206.1e9;  // 192 GiB, of which the driver keeps some
}

TEST(Machine, is_described_by_the_driver) {
  become_mi300x(0);
  const Properties p = gpus().driver.properties(0);
  EXPECT_EQ(p.name, "AMD Instinct MI300X");
  EXPECT_EQ(p.architecture, "gfx942:sramecc+:xnack-");
  EXPECT_EQ(p.capability, 0);
  EXPECT_EQ(p.multiprocessors, 304);
  EXPECT_EQ(p.clock, 2.1e9);
  EXPECT_EQ(p.memory_bytes, 206.1e9);
  EXPECT_EQ(p.shared_per_block_bytes, 65536);
  EXPECT_EQ(p.threads, 2048);
  EXPECT_EQ(p.max_cluster, 1);
  EXPECT_EQ(p.l2_bytes, 0);
  EXPECT_EQ(p.bytes_per_second, 0);
  EXPECT_EQ(fake::pending_error(), 0);
}

TEST(Machine, of_the_table_has_its_row_and_the_driver_s_architecture) {
  become_mi300x(0);
  const Device &row = device_row(0), &table = device("mi300x");
  EXPECT_EQ(row.name, "mi300x");
  EXPECT_EQ(row.architecture, "gfx942:sramecc+:xnack-");
  EXPECT_EQ(row.generation, table.generation);
  EXPECT_EQ(row.global.bytes_per_second, table.global.bytes_per_second);
  EXPECT_EQ(row.l2.capacity_bytes, table.l2.capacity_bytes);
  EXPECT_EQ(row.registers, table.registers);
  EXPECT_EQ(row.f16_flops, table.f16_flops);
  EXPECT_EQ(row.found,
            "AMD Instinct MI300X: 304 multiprocessors at 2100 MHz, 192 GB at 5300 GB/s, 256 MiB of "
            "L2");
}

TEST(Machine, that_is_a_partition_has_its_part_of_everything) {
  become_mi300x(1);
  fake::machine(1).multiprocessors = 38;  // CPX: one die of eight
  const Device &row = device_row(1), &table = device("mi300x");
  EXPECT_EQ(row.name, "AMD Instinct MI300X");
  EXPECT_EQ(row.multiprocessors, 38);
  EXPECT_EQ(row.global.bytes_per_second, 660e9);
  EXPECT_EQ(row.l2.capacity_bytes, 32 << 20);
  EXPECT_NEAR(row.f16_flops, table.f16_flops / 8, 1e9);
  EXPECT_NEAR(row.clock(), table.clock(), 1);
}

TEST(Machine, without_a_name_or_with_another_is_the_first_of_its_architecture) {
  become_mi300x(2), become_mi300x(3);
  fake::machine(2).name = "";
  EXPECT_EQ(device_row(2).name, "AMD gfx942:sramecc+:xnack-");
  fake::machine(3).name = "AMD Instinct MI250X";
  fake::machine(3).architecture = "gfx90a:sramecc+:xnack-";
  fake::machine(3).multiprocessors = 110;
  const Device& row = device_row(3);
  EXPECT_EQ(row.name, "AMD Instinct MI250X");
  EXPECT_EQ(row.generation, device("mi210").generation);
  EXPECT_EQ(row.multiprocessors, 110);
  EXPECT_EQ(row.global.bytes_per_second, device("mi210").global.bytes_per_second);
}

// Whose driver counts workgroup processors.
TEST(Machine, of_rdna_has_compute_units_and_waves_of_32_lanes) {
  fake::Machine& m = fake::machine(5);
  m.name = "AMD Radeon RX 7900 XTX";
  m.architecture = "gfx1100";
  m.multiprocessors = 48;
  m.clock_khz = 2500000;
  m.memory_bytes = 25.7e9;
  const Device& row = device_row(5);
  EXPECT_EQ(row.name, "rx7900xtx");
  EXPECT_EQ(row.multiprocessors, 96);
  EXPECT_EQ(row.threads, 1024);
  EXPECT_EQ(row.warp, 32);
}

TEST(Machine, of_no_known_architecture_is_refused_by_name) {
  become_mi300x(4);
  fake::machine(4).architecture = "gfx906:sramecc+:xnack-";
  EXPECT_THAT([] { device_row(4); },
              ThrowsMessage<Unsupported>(testing::AllOf(HasSubstr("AMD Instinct MI300X is gfx906"),
                                                        HasSubstr("gfx90a, gfx942"))));
}

TEST(Machine, that_the_driver_refuses_to_describe_throws_its_words) {
  fake_driver.device_result = 999;
  EXPECT_THAT([] { gpus().driver.properties(5); },
              ThrowsMessage<ToolchainError>(
                  "hipGetDeviceProperties: hipErrorFake: the fake was told to fail"));
  fake_driver.device_result = 0;
  EXPECT_EQ(fake::pending_error(), 0);
}

}  // namespace
}  // namespace ladder
