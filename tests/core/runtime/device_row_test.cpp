// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace ladder {
namespace {

cuda::Properties machine(std::string name, int capability) {
  return {.name = std::move(name),
          .capability = capability,
          .multiprocessors = 60,
          .memory_bytes = 24e9,
          .l2_bytes = 48e6,
          .bytes_per_second = 600e9,
          .shared_bytes = 102400,
          .shared_per_block_bytes = 101376,
          .registers = 65536,
          .threads = 1536};
}

TEST(DeviceRow, is_the_one_that_the_driver_names) {
  for (const auto& [name, capability, row] : {std::tuple{"NVIDIA H200", 90, "h200"},
                                              {"NVIDIA H100 80GB HBM3", 90, "h100"},
                                              {"NVIDIA A100-SXM4-80GB", 80, "a100"},
                                              {"NVIDIA RTX A6000", 86, "a6000"},
                                              {"NVIDIA GeForce RTX 4090", 89, "rtx4090"},
                                              {"NVIDIA L40S", 89, "l40s"},
                                              {"NVIDIA GeForce RTX 5090", 120, "rtx5090"},
                                              {"NVIDIA B200", 100, "b200"}}) {
    EXPECT_EQ(device_row(machine(name, capability)).name, row);
  }
}

TEST(DeviceRow, a_machine_without_a_row_gets_what_the_driver_measured) {
  const Device& row = device_row(machine("NVIDIA L4", 89));
  EXPECT_EQ(row.name, "NVIDIA L4");
  EXPECT_EQ(row.architecture, "sm_89");
  EXPECT_EQ(row.multiprocessors, 60);
  EXPECT_EQ(row.global.bytes_per_second, 600e9);
  EXPECT_EQ(row.shared_per_block_bytes, 101376);
  EXPECT_EQ(&device_row(machine("NVIDIA L4", 89)), &row);
  EXPECT_EQ(device_row(machine("NVIDIA GH200 480GB", 90)).architecture, "sm_90a");
  EXPECT_EQ(device_row(machine("NVIDIA of tomorrow", 130)).architecture, "sm_130a");
}

TEST(DeviceRow, a_name_of_another_architecture_is_not_believed) {
  EXPECT_EQ(device_row(machine("NVIDIA H200", 100)).capability, 100);
}

TEST(DeviceRow, machines_older_than_every_row_are_refused_by_name) {
  EXPECT_THAT([] { device_row(machine("Tesla K80", 37)); },
              testing::ThrowsMessage<Unsupported>(testing::HasSubstr("Tesla K80 has compute")));
}

}  // namespace
}  // namespace ladder
