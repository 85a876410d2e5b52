// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"
#include "codegen/cuda/driver.h"
#include "expr/constructors.h"
#include "pipelines/schedule.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

/// What the driver of a machine tells, as NVIDIA's tools print it.
struct Told {
  const char *name, *row;  ///< the row that it has; "" for none
  int capability, multiprocessors;
  double clock_mhz, memory_mib, l2_mib, memory_mhz, bus_bits;
  int max_cluster = 8;
};

Properties properties(const Told& t) {
  const bool hopper = t.capability == 90 || t.capability == 100, a100 = t.capability == 80;
  const bool volta = t.capability < 75, turing = t.capability <= 75;
  const int shared = hopper ? 228 : a100 ? 164 : volta ? 96 : turing ? 64 : 100;
  return {.name = t.name,
          .architecture = cuda::architecture_of(t.capability),
          .capability = t.capability,
          .multiprocessors = t.multiprocessors,
          .clock = t.clock_mhz * 1e6,
          .memory_bytes = t.memory_mib * 1024 * 1024,
          .l2_bytes = t.l2_mib * 1024 * 1024,
          .bytes_per_second = 2e6 * t.memory_mhz * t.bus_bits / 8,
          .shared_bytes = shared * 1024,
          .shared_per_block_bytes = (shared - (turing ? 0 : 1)) * 1024,
          .registers = 65536,
          .threads = hopper || a100 || volta ? 2048
                     : turing                ? 1024
                                             : 1536,
          .max_cluster = t.capability >= 90 ? t.max_cluster : 1};
}

const Device& row_of(const Told& t) { return device_row(properties(t)); }

const Told kH200 = {"NVIDIA H200", "h200", 90, 132, 1980, 143156, 60, 3201, 6144};
const Told kH100 = {"NVIDIA H100 80GB HBM3", "h100", 90, 132, 1980, 81079, 50, 2619, 5120};
const Told kKnown[] = {
    kH200,
    kH100,
    {"NVIDIA A100-SXM4-80GB", "a100", 80, 108, 1410, 81038, 40, 1593, 5120},
    {"NVIDIA A100 80GB PCIe", "a100", 80, 108, 1410, 81038, 40, 1512, 5120},
    {"NVIDIA RTX A6000", "a6000", 86, 84, 1800, 48541, 6, 8001, 384},
    {"NVIDIA GeForce RTX 4090", "rtx4090", 89, 128, 2520, 24111, 72, 10501, 384},
    {"NVIDIA L40S", "l40s", 89, 142, 2520, 45469, 96, 9001, 384},
    {"NVIDIA GeForce RTX 5090", "rtx5090", 120, 170, 2407, 32109, 96, 14001, 512},
    {"NVIDIA B200", "b200", 100, 148, 1965, 182642, 126, 3996, 8192},
    {"Tesla T4", "t4", 75, 40, 1590, 15109, 4, 5001, 256},
    {"Tesla V100-SXM2-16GB", "v100", 70, 80, 1530, 16144, 6, 877, 4096},
};

// The cost model was fitted to these numbers: those of the driver, which counts differently, must
// not move the choice of a schedule.
TEST(DeviceRow, of_a_machine_of_the_table_has_the_numbers_of_the_table) {
  for (const Told& told : kKnown) {
    const Device &row = row_of(told), &table = device(told.row);
    EXPECT_EQ(row.name, table.name) << told.name;
    EXPECT_EQ(to_string(row), to_string(table)) << told.name;
    EXPECT_EQ(row.clock(), table.clock()) << told.name;
    EXPECT_EQ(row.f16_flops, table.f16_flops) << told.name;
    EXPECT_EQ(row.max_cluster, table.max_cluster) << told.name;
    for (std::int64_t m : {1, 16}) {
      const Problem problem =
          linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, m);
      EXPECT_EQ(best_schedule(decide(problem, row), row.dependent_launch()),
                best_schedule(decide(problem, table), row.dependent_launch()))
          << told.name;
    }
  }
}

TEST(DeviceRow, of_a_machine_that_differs_from_its_name_has_the_drivers_numbers) {
  const Told kVariants[] = {
      {"NVIDIA A100-SXM4-40GB", "a100", 80, 108, 1410, 40339, 40, 1215, 5120},
      {"NVIDIA H100 PCIe", "h100", 90, 114, 1755, 81079, 50, 1593, 5120},
      {"NVIDIA H100 NVL", "h100", 90, 132, 1785, 95346, 50, 2619, 6016},
      {"NVIDIA GeForce RTX 4090 Laptop GPU", "rtx4090", 89, 76, 2040, 16013, 64, 9001, 256},
      {"NVIDIA GeForce RTX 4090 D", "rtx4090", 89, 114, 2520, 24111, 72, 10501, 384},
  };
  for (const Told& told : kVariants) {
    const Device &row = row_of(told), &table = device(told.row);
    EXPECT_EQ(row.name, told.name);
    EXPECT_EQ(row.architecture, table.architecture);
    EXPECT_EQ(row.multiprocessors, told.multiprocessors) << told.name;
    EXPECT_NEAR(row.global.bytes_per_second / 1e9, told.memory_mhz * told.bus_bits / 4e3,
                0.1 * table.global.bytes_per_second / 1e9)
        << told.name;
    EXPECT_NEAR(row.global.capacity_bytes, told.memory_mib * 1024 * 1024,
                0.1 * table.global.capacity_bytes)
        << told.name;
    EXPECT_NEAR(row.l2.capacity_bytes / (1 << 20), told.l2_mib, 0.1 * told.l2_mib + 1e-9)
        << told.name;
    EXPECT_NEAR(row.clock() / 1e6, told.clock_mhz, 0.1 * table.clock() / 1e6) << told.name;
    EXPECT_NEAR(row.f16_flops / (row.multiprocessors * row.clock()),
                table.f16_flops / (table.multiprocessors * table.clock()), 1e-3)
        << told.name;
    EXPECT_NE(to_string(row), to_string(table)) << told.name;
  }
  EXPECT_EQ(row_of(kVariants[0]).global.bytes_per_second, 1560e9);
  EXPECT_EQ(row_of(kVariants[0]).global.capacity_bytes, 42e9);
  EXPECT_EQ(row_of(kVariants[3]).global.bytes_per_second, 580e9);
  EXPECT_EQ(row_of(kVariants[3]).l2.capacity_bytes, 64 * 1024 * 1024);
  EXPECT_NEAR(row_of(kVariants[3]).clock(), 2.04e9, 1);
}

// Its bus is told as the whole's.
TEST(DeviceRow, of_a_slice_has_its_part_of_the_memory) {
  const Device& slice =
      row_of({"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100", 90, 16, 1980, 9984, 50, 2619, 5120, 4});
  EXPECT_EQ(slice.name, "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
  EXPECT_EQ(slice.multiprocessors, 16);
  EXPECT_EQ(slice.global.bytes_per_second, 440e9);
  EXPECT_EQ(slice.global.capacity_bytes, 10e9);
  EXPECT_EQ(slice.l2.capacity_bytes, 7 * 1024 * 1024);
  EXPECT_EQ(slice.max_cluster, 4);
  // The driver tells the numbers of the slice itself.
  const Device& told =
      row_of({"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100", 90, 16, 1980, 9984, 6, 2619, 640, 8});
  EXPECT_EQ(told.global.bytes_per_second, 420e9);
  EXPECT_EQ(told.l2.capacity_bytes, 6 * 1024 * 1024);
}

TEST(DeviceRow, has_clusters_as_large_as_the_driver_says_that_fit) {
  Told some = kH100, none = kH100, unknown = kH100, small = kH100;
  some.max_cluster = 4, none.max_cluster = 1, unknown.max_cluster = small.max_cluster = 0;
  small.multiprocessors = 7;
  EXPECT_EQ(row_of(some).max_cluster, 4);
  EXPECT_EQ(row_of(none).max_cluster, 1);
  EXPECT_EQ(row_of(unknown).max_cluster, 8);
  EXPECT_EQ(row_of(small).max_cluster, 7);
  const Problem problem =
      linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, 16);
  for (const Candidate& candidate : candidates(decide(problem, row_of(none)))) {
    const auto& s = std::get<DecodeSchedule>(candidate.schedule);
    if (s.reduction == Reduction::cluster ||
        (s.bulk_copy() != nullptr && s.bulk_copy()->multicast > 1)) {
      EXPECT_NE(candidate.dropped, "") << to_string(s);
    }
  }
}

// "h200" is in "GH200".
TEST(DeviceRow, is_named_by_whole_words) {
  const Told gh200 = {"NVIDIA GH200 480GB", "", 90, 132, 1980, 97871, 60, 2619, 6144};
  const Device& row = row_of(gh200);
  EXPECT_EQ(row.name, "NVIDIA GH200 480GB");
  EXPECT_EQ(row.architecture, "sm_90a");
  EXPECT_EQ(row.global.bytes_per_second, 4020e9);
  EXPECT_EQ(row.global.capacity_bytes, 103e9);
  EXPECT_EQ(row.l2.capacity_bytes, 60 * 1024 * 1024);
  // With every number of an H200.
  EXPECT_EQ(row_of({"NVIDIA GH200 144G HBM3e", "", 90, 132, 1980, 143156, 60, 3201, 6144}).name,
            "NVIDIA GH200 144G HBM3e");
  EXPECT_EQ(row_of({"NVIDIA RTX A600", "", 86, 84, 1800, 48541, 6, 8001, 384}).name,
            "NVIDIA RTX A600");
  EXPECT_EQ(row_of({"NVIDIA L40", "", 89, 142, 2490, 45469, 96, 9001, 384}).name, "NVIDIA L40");
}

TEST(DeviceRow, a_machine_without_a_row_gets_what_the_driver_measured) {
  const Told l4 = {"NVIDIA L4", "", 89, 58, 2040, 22478, 48, 6251, 192};
  const Device& row = row_of(l4);
  EXPECT_EQ(row.name, "NVIDIA L4");
  EXPECT_EQ(row.architecture, "sm_89");
  EXPECT_EQ(row.multiprocessors, 58);
  EXPECT_EQ(row.global.bytes_per_second, 300e9);
  EXPECT_EQ(row.shared_per_block_bytes, 99 * 1024);
  EXPECT_NEAR(row.clock(), 2.04e9, 1);
  EXPECT_EQ(&row_of(l4), &row);
  EXPECT_EQ(row_of({"NVIDIA of tomorrow", "", 130, 100, 2000, 80000, 64, 2000, 5120}).architecture,
            "sm_130a");
}

TEST(DeviceRow, a_name_of_another_architecture_is_not_believed) {
  Told odd = kH200;
  odd.capability = 100;
  EXPECT_EQ(row_of(odd).capability, 100);
  EXPECT_EQ(row_of(odd).name, "NVIDIA H200");
}

TEST(DeviceRow, machines_older_than_every_row_are_refused_by_name) {
  EXPECT_THAT(
      [] {
        row_of({"Tesla K80", "", 37, 13, 823, 11441, 1.5, 2505, 384});
      },
      testing::ThrowsMessage<Unsupported>(HasSubstr("Tesla K80 has compute")));
  EXPECT_THAT(
      [] {
        row_of({"Tesla P100-PCIE-16GB", "", 60, 56, 1328, 16280, 4, 715, 4096});
      },
      testing::ThrowsMessage<Unsupported>(
          "Tesla P100-PCIE-16GB has compute capability 6.0; kernels need 7.0"));
}

TEST(DeviceRow, makes_one_key_of_one_machine_and_others_of_its_variants) {
  const Problem problem =
      linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, 1);
  const auto key = [&](const Told& told) { return plan_key(problem, row_of(told), false); };
  EXPECT_EQ(key(kH200), to_string(problem) +
                            " on NVIDIA H200: 132 multiprocessors at 1980 MHz, 141 GB at 4530 GB/s"
                            ", 60 MiB of L2, scheduler 12");
  // Another driver keeps more memory for itself, or tells another step of the clock.
  Told again = kH200, stepped = kH200;
  again.memory_mib -= 700, stepped.clock_mhz = 1965;
  EXPECT_EQ(key(again), key(kH200));
  EXPECT_EQ(key(stepped), key(kH200));
  std::set<std::string> keys;
  int machines = 0;
  const auto add = [&](const Told& told) { keys.insert(key(told)), ++machines; };
  for (const Told& told : kKnown) add(told);
  add({"NVIDIA H100 PCIe", "h100", 90, 114, 1755, 81079, 50, 1593, 5120});
  add({"NVIDIA A100-SXM4-40GB", "a100", 80, 108, 1410, 40339, 40, 1215, 5120});
  // Of one name: modules with more memory, a smaller slice, boards with slower memory.
  add({"NVIDIA GeForce RTX 4090", "rtx4090", 89, 128, 2520, 48222, 72, 10501, 384});
  add({"NVIDIA GeForce RTX 4090", "rtx4090", 89, 128, 2520, 24111, 72, 8000, 384});
  add({"NVIDIA GeForce RTX 4090", "rtx4090", 89, 100, 2520, 24111, 72, 10501, 384});
  add({"NVIDIA GeForce RTX 4090", "rtx4090", 89, 128, 1400, 24111, 72, 10501, 384});
  EXPECT_EQ(keys.size(), machines);
}

}  // namespace
}  // namespace ladder
