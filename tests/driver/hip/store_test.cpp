// SPDX-License-Identifier: Apache-2.0
// Kernels of HIP through the stores: compiled once, found by what decides their machine code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "expr/constructors.h"
#include "fakes/driver.h"
#include "fakes/fakes.h"
#include "runtime/device_row.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"
#include "runtime/plan.h"

namespace ladder {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Stores : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string folder = (std::filesystem::temp_directory_path() / "ladder-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    setenv("LADDER_CACHE", folder.c_str(), 1);
  }
  static void TearDownTestSuite() {
    unsetenv("LADDER_CACHE");
    std::filesystem::remove_all(folder_);
  }
  /// A row as a machine of this architecture has it.
  static Device of(std::string_view architecture) {
    Device row = device("mi300x");
    row.architecture = architecture;
    return row;
  }

  inline static std::filesystem::path folder_;
};

TEST_F(Stores, have_a_kernel_that_was_compiled_once_with_all_that_decided_it) {
  const Device row = of("gfx942:sramecc+:xnack-");
  const int before = fake_hiprtc.compiled;
  int verified = 0;  // what nobody compiled before
  const MachineCode code = binary_of("a kernel", row, [&] { ++verified; });
  EXPECT_EQ(verified, 1);
  binary_of("a kernel", row, [&] { ++verified; });
  EXPECT_EQ(verified, 1);
  EXPECT_THROW(binary_of("a slip", row, [] { fail<InternalError>("a fault"); }), InternalError);
  EXPECT_EQ(fake_hiprtc.compiled, before + 1);
  EXPECT_THAT(code.bytes, EndsWith("--offload-arch=gfx942:sramecc+:xnack- -O3 -std=c++17 "
                                   "-ffp-contract=on\na kernel"));
  EXPECT_EQ(code.registers, 40);
  EXPECT_EQ(rejection(code), "");
  EXPECT_EQ(fake_hiprtc.compiled, before + 1);
  EXPECT_EQ(binary_of("a kernel", row).bytes, code.bytes);
  EXPECT_EQ(fake_hiprtc.compiled, before + 1);
  // Other features, another release.
  EXPECT_NE(binary_of("a kernel", of("gfx942:sramecc+:xnack+")).bytes, code.bytes);
  EXPECT_EQ(fake_hiprtc.compiled, before + 2);
  fake_hiprtc.minor = 4;
  binary_of("a kernel", row);
  fake_hiprtc.minor = 3;
  EXPECT_EQ(fake_hiprtc.compiled, before + 3);
}

TEST_F(Stores, have_what_processes_of_their_own_compiled_for_hip) {
  const Device row = of("gfx942");
  const std::vector<std::string> sources = {"one of hip", "two of hip"};
  gpus().toolchain.add_directory(LADDER_FAKES);
  // The process that compiles has no driver: it looks for hiprtc beside ours.
  EXPECT_THAT(gpus().toolchain.directories().front(), EndsWith("/fakes/hip"));
  compile_missing(sources, row);
  const int before = fake_hiprtc.compiled;
  for (const auto& source : sources) EXPECT_THAT(binary_of(source, row).bytes, EndsWith(source));
  EXPECT_EQ(fake_hiprtc.compiled, before);
}

TEST_F(Stores, know_which_kernels_spill) {
  const Device row = of("gfx942");
  setenv("LADDER_FAKE_SPILLS", "wide", 1);
  EXPECT_EQ(rejection(binary_of("a wide kernel", row)), "spills 8 bytes of registers");
  unsetenv("LADDER_FAKE_SPILLS");
  EXPECT_TRUE(known_to_be_rejected("a wide kernel", row));
  EXPECT_FALSE(known_to_be_rejected("a kernel", row));
}

TEST_F(Stores, give_kernels_that_the_driver_loads) {
  fake::machine(6).name = "AMD Instinct MI300X";
  fake::machine(6).architecture = "gfx942:sramecc+:xnack-";
  fake::machine(6).multiprocessors = 304;
  const int loads = fake::loads();
  const SharedKernel kernel = load_kernel("a kernel to start", "kernel", 6, 0);
  EXPECT_EQ(load_kernel("a kernel to start", "kernel", 6, 0), kernel);
  EXPECT_EQ(fake::loads(), loads + 1);
  EXPECT_TRUE(kernel->launch({{1, 1, 1}, 64, 0, false}, fake::new_stream(), nullptr));
  setenv("LADDER_FAKE_SPILLS", "too wide", 1);
  EXPECT_THAT([] { load_kernel("too wide", "kernel", 6, 0); },
              ThrowsMessage<Unsupported>(HasSubstr("spills 8 bytes of registers")));
  unsetenv("LADDER_FAKE_SPILLS");
}

TEST_F(Stores, compile_nothing_that_the_compiler_refuses) {
  fake_hiprtc.result = 6;
  EXPECT_THAT([] { binary_of("a wrong kernel", of("gfx942")); },
              ThrowsMessage<ToolchainError>(
                  testing::AllOf(HasSubstr("hiprtc 6.3"), HasSubstr("HIPRTC_ERROR_COMPILATION"),
                                 HasSubstr("the fake was told to fail"))));
  fake_hiprtc.result = 0;
}

// Of what a release does not know some end the process: it is not asked.
TEST_F(Stores, compile_for_no_architecture_that_the_release_does_not_know) {
  const int before = fake_hiprtc.compiled;
  const auto& toolchain = gpus().toolchain;
  fake_hiprtc.major = 5;
  EXPECT_THAT(toolchain.flags("gfx90a"), testing::StartsWith("hiprtc "));
  if (toolchain.objection("gfx942").empty()) {
    EXPECT_THAT(toolchain.flags("gfx942"), testing::StartsWith("clang "));
  } else {
    EXPECT_THAT(toolchain.objection("gfx942"), HasSubstr("hiprtc 5.3"));
  }
  EXPECT_THAT(toolchain.objection("gfx906"), testing::Not(HasSubstr("neither")));
  fake_hiprtc.major = 6;
  EXPECT_EQ(fake_hiprtc.compiled, before);
}

TEST_F(Stores, have_plans_of_the_machine_and_not_of_its_features) {
  fake::machine(7).name = "AMD Instinct MI300X";
  fake::machine(7).architecture = "gfx942:sramecc+:xnack+";
  fake::machine(7).multiprocessors = 304;
  fake::machine(7).clock_khz = 2100000;
  const Problem problem =
      linear_of(ttype("uint4,group=128,scale=float16"), 4096, 4096, Scalar::f16, 1);
  const std::string key = plan_key(problem, device_row(7), true);
  EXPECT_THAT(key, HasSubstr("AMD Instinct MI300X: 304 multiprocessors at 2100 MHz"));
  EXPECT_THAT(key, testing::Not(HasSubstr("dependent")));
  EXPECT_EQ(stored_plan(key), std::nullopt);
  keep_plan(key, {"a schedule", 3});
  ASSERT_TRUE(stored_plan(key).has_value());
  EXPECT_EQ(stored_plan(key)->schedule, "a schedule");
}

}  // namespace
}  // namespace ladder
