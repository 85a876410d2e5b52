// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the V100, by the last NVRTC that knows it: 12, where LADDER_NVRTC_12 is
// its folder. A program of its own, since a process has one NVRTC.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "codegen/cuda/quantize.h"
#include "codegen/cuda/toolchain.h"
#include "codegen/routing_kernels.h"
#include "codegen/target.h"
#include "codegen/weight_kernels.h"
#include "compile.h"
#include "expr/constructors.h"
#include "program/kinds_of_types.h"
#include "some_kernel.h"
#include "types/ttype.h"

namespace ladder {
namespace {

/// Skips, or fails where an NVRTC was named, without one that knows sm_70.
class WithNvrtc : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (const char* folder = std::getenv("LADDER_NVRTC_12")) cuda::add_nvrtc_directory(folder);
  }
  void SetUp() override {
    if (!cuda::compiler_objection("sm_70").empty()) {
      const bool asked = std::getenv("LADDER_NVRTC_12") != nullptr;
      ASSERT_FALSE(asked) << cuda::compiler_objection("sm_70");
      GTEST_SKIP() << cuda::compiler_objection("sm_70");
    }
  }
};

class Volta : public WithNvrtc, public ::testing::WithParamInterface<const char*> {};
class VoltaKernels : public WithNvrtc {};

void expect_no_spills(const std::string& source, const std::string& what) {
  const auto binary = cuda::compile(source, "sm_70");
  EXPECT_EQ(binary.spill_bytes, 0) << what << binary.log;
}

// As models have them: a first choice that compiles without spills, for few tokens and for many.
TEST_P(Volta, has_kernels_without_spills) {
  const Device& v100 = device("v100");
  for (const std::int64_t m : {1, 16, 64, 2048}) {
    Problem problem = linear_of(ttype(GetParam()), 4096, 4096, Scalar::f16, m);
    problem.set_bias(m % 3 == 1);
    const Decisions decisions = decide(problem, v100);
    int tried = 0;
    std::string spilled;
    for (const Candidate& each : candidates(decisions)) {
      if (!each.dropped.empty() || is_dense(each.schedule) || tried == testing::kTries) break;
      const auto why = rejection(cuda::compile(compile(decisions, each.schedule).source, "sm_70"));
      ++tried;
      if (why.empty()) {
        spilled.clear();
        break;
      }
      spilled += "\n  " + to_string(each.schedule) + ": " + why;
    }
    // Of many tokens the first choice may be to dequantise.
    EXPECT_TRUE(tried > 0 || m > 64) << GetParam() << ", " << m;
    EXPECT_EQ(spilled, "") << m;
  }
}

TEST_F(VoltaKernels, of_weights_compile_without_spills) {
  const auto& kernels = image_kernels(target_called("CUDA"));
  for (int bits = 1; bits <= 8; ++bits) {
    expect_no_spills(kernels.pack(bits), "pack");
    expect_no_spills(kernels.unpack(bits), "unpack");
    expect_no_spills(kernels.permute(bits), "permute");
  }
  constexpr Scalar kOut[] = {Scalar::f16, Scalar::bf16, Scalar::f32};
  std::size_t turn = 0;
  for (const char* type : testing::kKindsOfTypes) {
    const Problem problem = linear_of(ttype(type), 128, 256, Scalar::f16, 1);
    expect_no_spills(kernels.dequantize(problem.weight, kOut[turn++ % 3]), type);
  }
}

TEST_F(VoltaKernels, around_experts_and_of_quantising_compile_without_spills) {
  const RoutingKernels& kernels = routing_kernels(target_called("CUDA"));
  for (const bool whole : {false, true}) {
    expect_no_spills(kernels.route({whole, false}), "route");
    expect_no_spills(kernels.gated(Scalar::f16, Gated::silu, {whole, false}), "silu");
    expect_no_spills(kernels.combine(Scalar::f16, Scalar::f32, {whole, false}), "combine");
  }
  for (const char* type : {"uint4,group=128", "int8,channel", "nf4,group=64", "mxfp4"}) {
    expect_no_spills(cuda::quantize_source(ttype(type)), type);
  }
  for (const char* type : {"uint4,group=128,scale=float16", "nf4,group=64,scale=float16"}) {
    Problem problem = linear_of(ttype(type), 1536, 2048, Scalar::f16, 16);
    problem.rows = RoutedRows{.items = 100, .deviation = 4, .bytes = 1 << 21};
    testing::expect_a_kernel(problem, device("v100"));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Volta, ::testing::ValuesIn(testing::kKindsOfTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
