// SPDX-License-Identifier: Apache-2.0
// Compilers of HIP that this machine has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "codegen/hip/code_object.h"
#include "codegen/hip/libraries.h"
#include "codegen/hip_clang.h"

namespace ladder::hip {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr const char* kKernel = R"(
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(256, 256)))
void twice(float* a, unsigned tokens) {
  if (tokens > 0) a[__builtin_amdgcn_workitem_id_x()] *= 2;
}
)";

/// A folder for temporary files that nobody else has.
class OwnFolder {
 public:
  OwnFolder() {
    path_ = (fs::temp_directory_path() / "ladder-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) std::abort();
    if (const char* value = std::getenv("TMPDIR")) before_ = value;
    setenv("TMPDIR", path_.c_str(), 1);
  }
  ~OwnFolder() {
    before_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before_.c_str(), 1);
    fs::remove_all(path_);
  }
  bool is_empty() const { return fs::is_empty(path_); }

 private:
  std::string path_, before_;
};

// Tests that compile are skipped where there is no clang for AMD's GPUs; `make` asks for one.
TEST(HipClang, is_there_where_the_caller_says_so) {
  const char* const needed = std::getenv("LADDER_NEEDS_CLANG");
  if (needed == nullptr || *needed == 0) return;
  for (const char* architecture : {"gfx90a", "gfx942"}) {
    EXPECT_TRUE(found_clang(architecture)) << "for " << architecture
                                           << ": apt-get install clang-19 lld-19; make "
                                              "LADDER_NEEDS_CLANG= skips the tests that compile";
  }
}

TEST(HipFlags, name_the_compiler_and_all_that_decides_machine_code) {
  EXPECT_EQ(clang_flags("gfx942:sramecc+:xnack-"),
            "clang --offload-arch=gfx942:sramecc+:xnack- -O3 -std=c++17 -ffp-contract=on -x hip "
            "--cuda-device-only --no-gpu-bundle-output -nogpulib -nogpuinc "
            "-mcode-object-version=5 -fuse-cuid=none");
  for (const char* wrong : {"", "sm_90a", "gcc --offload-arch=gfx942", "clang", "clang -O3"}) {
    EXPECT_THROW(compile(kKernel, wrong), InvalidArgument) << wrong;
  }
}

TEST(HipToolchain, says_which_compilers_do_not_know_an_architecture) {
  const std::string why = compiler_objection("gfx000:xnack-");
  if (compiler_version("").empty()) {
    EXPECT_THAT(why, HasSubstr("clang++-19"));
  } else {
    EXPECT_THAT(why, AllOf(HasSubstr("knows gfx000: "), HasSubstr(compiler_version(""))));
  }
  EXPECT_THAT([] { flags_for("gfx000"); },
              ThrowsMessage<Unsupported>(compiler_objection("gfx000")));
  EXPECT_THROW(compile(kKernel, clang_flags("gfx000")), Unsupported);
}

void expect_compiles_by_clang(const std::string& architecture) {
  const OwnFolder temporary;
  const std::string flags = clang_flags(architecture);
  const MachineCode made = compile(kKernel, flags);
  EXPECT_TRUE(temporary.is_empty());
  EXPECT_THAT(compiler_version(flags), HasSubstr("clang version"));
  EXPECT_GT(made.registers, 0);
  EXPECT_EQ(made.stack_bytes, 0);
  EXPECT_EQ(rejection(made), "");
  EXPECT_THAT(made.log, HasSubstr("twice: "));
  const auto kernels = kernels_of(made.bytes);
  ASSERT_EQ(kernels.size(), 1);
  EXPECT_EQ(kernels[0].name, "twice");
  EXPECT_EQ(kernels[0].argument_bytes, 12) << "no hidden arguments";
  EXPECT_EQ(kernels[0].most_threads, 256);
  EXPECT_THAT(made.bytes, HasSubstr("amdgcn-amd-amdhsa--" + architecture));
}

TEST(HipToolchain, compiles_by_clang_and_reads_what_the_kernel_takes) {
  for (const char* plain : {"gfx90a", "gfx942"}) LADDER_SKIP_WITHOUT_CLANG(plain);
  for (const char* architecture : {"gfx90a", "gfx942", "gfx942:sramecc+:xnack-"}) {
    expect_compiles_by_clang(architecture);
  }
}

TEST(HipToolchain, compiles_for_gfx950_by_a_clang_that_knows_it) {
  LADDER_SKIP_WITHOUT_CLANG("gfx950");
  expect_compiles_by_clang("gfx950");
}

TEST(HipToolchain, compiles_by_hiprtc_where_that_knows_the_architecture) {
  if (!hiprtc_knows("gfx90a")) GTEST_SKIP() << "no libhiprtc of ROCm 5 or newer on this machine";
  const std::string flags = flags_for("gfx90a:sramecc+:xnack-");
  EXPECT_EQ(flags, "hiprtc --offload-arch=gfx90a:sramecc+:xnack- -O3 -std=c++17 -ffp-contract=on");
  EXPECT_EQ(compiler_version(flags), hiprtc_version());
  const MachineCode made = compile(kKernel, flags);
  EXPECT_GT(made.registers, 0);
  EXPECT_EQ(rejection(made), "");
  EXPECT_EQ(kernels_of(made.bytes).front().name, "twice");
  EXPECT_THAT([&] { compile("this is no kernel", flags); },
              ThrowsMessage<ToolchainError>(AllOf(HasSubstr("hiprtc "), HasSubstr("error:"))));
}

TEST(HipToolchain, gives_equal_code_for_equal_sources) {
  LADDER_SKIP_WITHOUT_CLANG("gfx942");
  const std::string flags = clang_flags("gfx942");
  const std::string once = compile(kKernel, flags).bytes;
  EXPECT_TRUE(compile(kKernel, flags).bytes == once);
}

TEST(HipToolchain, reads_what_llvm_writes) {
  LADDER_SKIP_WITHOUT_CLANG("gfx942");
  const MachineCode made = compile(kKernel, clang_flags("gfx942"));
  const std::string text = assembly_of(*found_clang("gfx942"), kKernel, "gfx942");
  const KernelResources kernel = kernels_of(made.bytes).front();
  const auto says = [&](const char* key, std::int64_t value) {
    const auto at = text.find(std::string(key) + ":");
    ASSERT_NE(at, std::string::npos) << key;
    EXPECT_EQ(std::stoll(text.substr(text.find(':', at) + 1)), value) << key;
  };
  says(".vgpr_count", kernel.vgprs);
  says(".agpr_count", kernel.agprs);
  says(".sgpr_count", kernel.sgprs);
  says(".vgpr_spill_count", kernel.vgpr_spills);
  says(".sgpr_spill_count", kernel.sgpr_spills);
  says(".private_segment_fixed_size", kernel.scratch_bytes);
  says(".group_segment_fixed_size", kernel.lds_bytes);
  says(".kernarg_segment_size", kernel.argument_bytes);
  says(".max_flat_workgroup_size", kernel.most_threads);
}

TEST(HipToolchain, rejects_kernels_that_spill_keep_scratch_or_lose_waves_by_name) {
  LADDER_SKIP_WITHOUT_CLANG("gfx942");
  const std::string flags = clang_flags("gfx942");
  // 200 sums, and registers for 64 of them.
  const MachineCode spilling = compile(R"(
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(64, 64)))
__attribute__((amdgpu_waves_per_eu(8, 8))) void k(float* a) {
  float sums[200];
  for (int i = 0; i < 200; ++i) sums[i] = a[i * 64 + __builtin_amdgcn_workitem_id_x()];
  __builtin_amdgcn_s_barrier();
#pragma unroll
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 200; ++i) sums[i] = sums[i] * sums[(i + 7) % 200] + sums[(i + 13) % 200];
  for (int i = 0; i < 200; ++i) a[i * 64 + __builtin_amdgcn_workitem_id_x()] = sums[i];
}
)",
                                       flags);
  EXPECT_GT(spilling.spill_bytes, 0);
  EXPECT_GT(spilling.stack_bytes, 0);
  EXPECT_THAT(rejection(spilling), testing::MatchesRegex("spills [0-9]+ bytes of registers"));
  // Indexed by what only the launch knows.
  const MachineCode indexed = compile(R"(
extern "C" __attribute__((global)) void k(float* a, const int* at) {
  float kept[64];
  for (int i = 0; i < 64; ++i) kept[at[i]] = a[i];
  for (int i = 0; i < 64; ++i) a[i] = kept[at[i + 64]];
}
)",
                                      flags);
  EXPECT_EQ(indexed.spill_bytes, 0);
  EXPECT_THAT(rejection(indexed),
              testing::MatchesRegex("has [0-9]+ bytes of a lane in scratch memory"));
  const MachineCode waves = compile(R"(
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(256, 256)))
__attribute__((amdgpu_waves_per_eu(4, 4))) void k(float* a) {
  static __attribute__((shared)) float s[15000];
  s[__builtin_amdgcn_workitem_id_x()] = a[__builtin_amdgcn_workitem_id_x()];
  __builtin_amdgcn_s_barrier();
  for (int i = 0; i < 15000; i += 256) a[i] = s[i ^ 77];
}
)",
                                    flags);
  EXPECT_THAT(rejection(waves), HasSubstr("failed to meet occupancy target"));
}

TEST(HipToolchain, gives_the_words_of_clang_without_our_folders) {
  LADDER_SKIP_WITHOUT_CLANG("gfx942");
  const OwnFolder temporary;
  EXPECT_THAT([] { compile("this is no kernel", clang_flags("gfx942")); },
              ThrowsMessage<ToolchainError>(
                  AllOf(HasSubstr("clang version"), HasSubstr("--offload-arch=gfx942"),
                        HasSubstr("ended with status 1"), HasSubstr("\nkernel.hip:1:1: error:"),
                        Not(HasSubstr("ladder-hip-")))));
  EXPECT_TRUE(temporary.is_empty());
}

TEST(HipToolchain, takes_a_clang_of_an_added_directory_first) {
  std::string folder = (fs::temp_directory_path() / "ladder-clang-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string program = folder + "/clang++";
  std::ofstream(program) << "#!/bin/sh\n"
                            "case $1 in\n"
                            "--version) echo 'Fake clang version 1.2.3'; echo 'more';;\n"
                            "--target*) echo 'Available CPUs for this target:'; echo gfx777;;\n"
                            "*) echo 'no patience' >&2; kill -9 $$;;\n"
                            "esac\n";
  chmod(program.c_str(), 0700);
  add_directory(folder);
  const std::string flags = flags_for("gfx777:xnack-");
  EXPECT_THAT(flags, testing::StartsWith("clang --offload-arch=gfx777:xnack- "));
  EXPECT_EQ(compiler_version(flags), "Fake clang version 1.2.3");
  EXPECT_THAT([&] { compile(kKernel, flags); },
              ThrowsMessage<ToolchainError>(
                  AllOf(HasSubstr("ended by signal 9"), HasSubstr("no patience"))));
  fs::remove_all(folder);
  EXPECT_NE(compiler_objection("gfx777"), "") << "it is gone";
}

}  // namespace
}  // namespace ladder::hip
