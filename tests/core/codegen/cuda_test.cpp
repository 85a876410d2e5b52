// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "codegen/cuda/emit.h"
#include "codegen/cuda/toolchain.h"
#include "codegen/target.h"
#include "compile.h"
#include "integer_layer.h"

namespace ladder {
namespace {

const Problem kProblem = testing::integer_layer(4, 8, 128, Scalar::f16, 8, 8192, 8192);
constexpr DecodeSchedule kOnce{.tokens = 8,
                               .warps_n = 1,
                               .warps_k = 4,
                               .blocks_per_warp = 2,
                               .reduction = Reduction::ordered,
                               .ctas_per_sm = 4};
constexpr DecodeSchedule kRing{.tokens = 8,
                               .warps_n = 4,
                               .warps_k = 1,
                               .blocks_per_warp = 2,
                               .weights = weights::Ring{.k_tiles = 8, .stages = 2},
                               .reduction = Reduction::cluster,
                               .route = Route::in_place,
                               .dependent_launch = true,
                               .ctas_per_sm = 3};

TEST(Emit, equal_programs_give_equal_text_that_includes_nothing) {
  const auto first = compile(decide(kProblem, device("h200")), kRing);
  EXPECT_EQ(first.source, compile(decide(kProblem, device("h200")), kRing).source);
  EXPECT_THAT(first.source, ::testing::Not(::testing::HasSubstr("#include")));
}

TEST(Emit, a_codes_pair_is_one_mask_and_at_most_one_multiply_add) {
  EXPECT_THAT(compile(decide(kProblem, device("h200")), kRing).source,
              ::testing::HasSubstr("a[1] = (words[0] & 0x00f000f0u);\n"));
  // 2^11 as the multiplier of offset 4, and -8 * 2^-9.
  EXPECT_THAT(compile(decide(kProblem, device("a100")), kOnce).source,
              ::testing::HasSubstr(
                  "a[1] = fma_f16((words[0] & 0x00f000f0u), 0x68006800u, 0xa400a400u);\n"));
}

// Callers may give a bias that begins between two words: what copies it first
// (csrc/binding/torch/cuda_linear.cpp) counts on pieces of at most four bytes.
TEST(Emit, a_bias_is_read_in_pieces_of_a_word_at_most) {
  int seen = 0;
  for (std::int64_t n : {8192, 200, 101}) {
    for (std::int64_t m : {1, 8, 16, 32}) {
      Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, m, n, 8192);
      problem.set_bias(true);
      for (const auto& [schedule, cost, dropped] : candidates(decide(problem, device("h200")))) {
        if (!dropped.empty() || ++seen % 8 != 0) continue;
        const auto text = compile(decide(problem, device("h200")), schedule).source;
        const auto first = text.find("bias_of_rows = load");
        const auto load = text.substr(first, text.find("{  // ", first) - first);
        EXPECT_THAT(load, ::testing::Not(::testing::ContainsRegex("Words[24]"))) << load;
      }
    }
  }
  EXPECT_GE(seen, 100);
}

TEST(Compile, a_schedule_that_the_device_cannot_run_is_refused_with_the_reason) {
  EXPECT_THAT(
      [] { compile(decide(kProblem, device("a100")), kRing); },
      ::testing::ThrowsMessage<Unsupported>(::testing::HasSubstr("a cluster of 8, of at most 1")));
}

TEST(Compile, every_device_with_a_target_gets_a_schedule_and_others_are_refused) {
  for (const Device& row : devices()) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      Problem problem = kProblem;
      problem.set_activation(activation);
      const bool has_target = no_target(row).empty();
      if (has_target && tile_instruction(activation, row) == nullptr) {  // Turing, bf16
        EXPECT_THAT([&] { compile(problem, row); },
                    ::testing::ThrowsMessage<Unsupported>(::testing::HasSubstr(
                        "no instruction of " + std::string(row.name) + " multiplies")));
      } else if (has_target) {
        EXPECT_NO_THROW(compile(problem, row)) << row.name;
      } else {
        EXPECT_THAT([&] { compile(problem, row); },
                    ::testing::ThrowsMessage<Unsupported>(::testing::HasSubstr(
                        "no target writes kernels for " + std::string(row.name))));
      }
    }
  }
}

// Needs libnvrtc, no GPU: `pip install nvidia-cuda-nvrtc` and its folder in LD_LIBRARY_PATH.
TEST(Toolchain, kernels_for_every_architecture_compile_without_spills) {
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  for (const char* name : {"a100", "l40s", "h200", "b200"}) {
    const Device& row = device(name);
    const auto binary =
        cuda::compile(compile(decide(kProblem, row), kOnce).source, row.architecture);
    EXPECT_EQ(binary.spill_bytes, 0) << name;
    EXPECT_GT(binary.registers, 0) << name;
    EXPECT_EQ(binary.bytes.substr(1, 3), "ELF") << name;
  }
  const auto ring =
      cuda::compile(compile(decide(kProblem, device("h200")), kRing).source, "sm_90a");
  EXPECT_EQ(ring.spill_bytes, 0);
}

// C7508: without launch bounds nobody knows how many registers there are to hand over.
TEST(Toolchain, what_the_assembler_gave_up_rejects_a_kernel_and_so_do_spills) {
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  const std::string body =
      "few(float* y) { asm volatile(\"setmaxnreg.inc.sync.aligned.u32 240;\"); y[0] = 1; }";
  const auto of = [&](const std::string& head) { return cuda::compile(head + body, "sm_90a"); };
  const auto rejected = of("extern \"C\" __global__ void ");
  EXPECT_THAT(rejection(rejected), ::testing::HasSubstr("C7508"));
  EXPECT_EQ(rejection(of("extern \"C\" __global__ void __launch_bounds__(256, 1) ")), "");
  EXPECT_EQ(rejection({"code", 255, 24, 16, ""}), "spills 16 bytes of registers");
}

TEST(Toolchain, a_source_that_does_not_compile_is_reported_with_the_compilers_log) {
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  EXPECT_THAT([] { cuda::compile("this is no kernel", "sm_90a"); },
              ::testing::ThrowsMessage<ToolchainError>(::testing::HasSubstr("kernel.cu(1)")));
}

}  // namespace
}  // namespace ladder
