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

}  // namespace
}  // namespace ladder
