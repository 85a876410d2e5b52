// SPDX-License-Identifier: Apache-2.0
// Machines as the CUDA driver has them.
#include <gtest/gtest.h>

#include "codegen/cuda/driver.h"
#include "fakes/driver.h"
#include "runtime/device_row.h"

namespace ladder {
namespace {

TEST(Machine, is_described_by_the_driver) {
  const auto p = cuda::properties(0);
  EXPECT_EQ(p.name, "NVIDIA H200");
  EXPECT_EQ(p.capability, 90);
  EXPECT_EQ(p.multiprocessors, 132);
  EXPECT_EQ(p.clock, 1.98e9);
  EXPECT_EQ(p.bytes_per_second, 2 * 3201e6 * 6144 / 8);
  EXPECT_EQ(p.max_cluster, 8);
  EXPECT_EQ(device_row(0).name, "h200");
}

TEST(Machine, has_clusters_as_large_as_fit) {
  fake::machine(5).largest_cluster = 4;
  EXPECT_EQ(cuda::properties(5).max_cluster, 4);
  fake::machine(5).largest_cluster = 0;
  EXPECT_EQ(cuda::properties(5).max_cluster, 1);
  fake::machine(5).capability = 89;
  EXPECT_EQ(cuda::properties(5).max_cluster, 1);
  const int loads = fake::loads();
  cuda::properties(5);
  EXPECT_EQ(fake::loads(), loads);  // nothing to ask
}

// A GeForce RTX 2080 Ti: no row has its name, the T4's has its instructions.
TEST(Machine, of_turing_without_a_row_has_that_of_the_t4_with_the_numbers_of_the_driver) {
  fake::machine(6) = {.name = "NVIDIA GeForce RTX 2080 Ti",
                      .capability = 75,
                      .multiprocessors = 68,
                      .memory_bytes = 11.5e9,
                      .clock_khz = 1545000,
                      .memory_khz = 7000000,
                      .bus_bits = 352,
                      .l2_bytes = 5632 << 10,
                      .shared_bytes = 64 << 10,
                      .shared_per_block_bytes = 64 << 10,
                      .threads = 1024,
                      .largest_cluster = 1};
  const Device &row = device_row(6), &table = device("t4");
  EXPECT_EQ(row.name, "NVIDIA GeForce RTX 2080 Ti");
  EXPECT_EQ(row.architecture, "sm_75");
  EXPECT_EQ(row.multiprocessors, 68);
  EXPECT_EQ(row.global.bytes_per_second, 620e9);
  EXPECT_EQ(row.shared_per_block_bytes, table.shared_per_block_bytes);
  EXPECT_EQ(row.threads, table.threads);
  EXPECT_NEAR(row.f16_flops / row.multiprocessors / row.clock(),
              table.f16_flops / table.multiprocessors / table.clock(), 1e-6);
  EXPECT_EQ(tile_instruction(Scalar::f16, row), tile_instruction(Scalar::f16, table));
  EXPECT_TRUE(row.copies_to_shared());
  EXPECT_FALSE(row.async_copy());
}

}  // namespace
}  // namespace ladder
