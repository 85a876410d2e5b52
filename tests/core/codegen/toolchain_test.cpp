// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/toolchain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace ladder::cuda {
namespace {

// Tests that compile are skipped where there is no NVRTC; `make` has NVRTC.
TEST(Compiler, is_there_where_the_caller_says_so) {
  if (std::getenv("LADDER_NEEDS_NVRTC") == nullptr) return;
  EXPECT_NE(compiler_version(), "");
}

TEST(Target, is_the_device_s_own_where_the_compiler_knows_it) {
  const std::vector<int> supported{75, 80, 86, 87, 89, 90, 100};
  for (const char* architecture : {"sm_75", "sm_80", "sm_87", "sm_89", "sm_90a", "sm_100a"}) {
    EXPECT_EQ(target_for(architecture, supported), architecture);
  }
}

TEST(Target, is_an_older_one_of_the_same_major_number_else) {
  EXPECT_EQ(target_for("sm_89", {75, 80, 86, 90}), "sm_86");
  EXPECT_EQ(target_for("sm_103a", {90, 100, 120}), "sm_100");
  EXPECT_EQ(target_for("sm_121a", {100, 120}), "sm_120");
}

TEST(Target, is_ptx_of_an_older_one_else) {
  EXPECT_EQ(target_for("sm_90a", {80, 86, 89}), "compute_89");
  EXPECT_EQ(target_for("sm_120a", {80, 90, 100}), "compute_100");
  EXPECT_EQ(target_for("sm_130a", {75, 120, 121}), "compute_121");
}

// Their machine code is not that of other chips with the same major number.
TEST(Target, of_a_board_with_the_cpu_on_the_chip_is_its_own_or_ptx) {
  EXPECT_EQ(target_for("sm_87", {80, 86, 89}), "compute_86");
  EXPECT_EQ(target_for("sm_89", {80, 87}), "sm_80");
  EXPECT_EQ(target_for("sm_89", {87}), "compute_87");
}

TEST(Target, is_none_where_all_are_newer) {
  EXPECT_EQ(target_for("sm_70", {75, 80}), "");
  EXPECT_EQ(target_for("sm_90a", {}), "");
}

TEST(Toolchain, lists_what_it_compiles_for_and_compiles_for_all_of_it) {
  if (compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  const auto supported = supported_architectures();
  ASSERT_THAT(supported, testing::Contains(90));
  constexpr const char* kKernel = "extern \"C\" __global__ void nothing() {}";
  for (const int each : supported) {
    const auto target = "sm_" + std::to_string(each);
    EXPECT_EQ(compile(kKernel, target).bytes.substr(1, 3), "ELF") << target;
  }
  EXPECT_EQ(compiler_objection("sm_90a"), "");
  EXPECT_THAT(compiler_objection("sm_30"), testing::HasSubstr("none of which runs on"));
}

TEST(Toolchain, gives_ptx_where_the_driver_is_to_compile) {
  if (compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  const auto target = target_for("sm_999a");
  ASSERT_EQ(target.substr(0, 8), "compute_");
  const auto ptx = compile("extern \"C\" __global__ void nothing() {}", target).bytes;
  EXPECT_THAT(ptx, testing::HasSubstr(".target sm_" + target.substr(8)));
  EXPECT_THAT(ptx, testing::HasSubstr(".entry nothing"));
  EXPECT_EQ(ptx.find('\0'), std::string::npos);
}

}  // namespace
}  // namespace ladder::cuda
