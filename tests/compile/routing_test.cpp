// SPDX-License-Identifier: Apache-2.0
//
// The kernels around the products of experts, and such products, compile without spills. Needs
// libnvrtc, no GPU.
#include <gtest/gtest.h>

#include "codegen/cuda/toolchain.h"
#include "codegen/routing_kernels.h"
#include "codegen/target.h"
#include "compile.h"
#include "expr/constructors.h"

namespace ladder {
namespace {

void expect_no_spills(const std::string& source, const std::string& what,
                      const std::string& architecture) {
  const auto binary = cuda::compile(source, architecture);
  EXPECT_EQ(binary.spill_bytes, 0) << what << " " << architecture << binary.log;
}

TEST(RoutingKernels, compile_without_spills) {
  const RoutingKernels& kernels = routing_kernels(target_called("CUDA"));
  for (const char* architecture : {"sm_75", "sm_80", "sm_89", "sm_90a"}) {
    const bool dependent = std::string(architecture) == "sm_90a";
    for (const bool whole : {false, true}) {
      const RowKind kind{whole, dependent};
      expect_no_spills(kernels.route(kind), "route", architecture);
      expect_no_spills(kernels.route({whole, dependent, true}), "route of rounded rows",
                       architecture);
      for (const char* name : {"gelu", "gelu_pytorch_tanh", "linear", "mish", "quick_gelu", "relu",
                               "relu2", "sigmoid", "silu", "swigluoai", "tanh"}) {
        const auto what = gated_called(name);
        ASSERT_TRUE(what.has_value()) << name;
        expect_no_spills(kernels.gated(Scalar::f16, *what, kind), name, architecture);
      }
      for (const Scalar weight : {Scalar::f16, Scalar::f32}) {
        expect_no_spills(kernels.combine(Scalar::f16, weight, kind), "combine", architecture);
      }
    }
  }
  const auto silu = kernels.gated(Scalar::bf16, Gated::silu, {true, true});
  expect_no_spills(silu, "silu of bfloat16", "sm_90a");
  EXPECT_FALSE(gated_called("prelu").has_value());
}

bool has_a_kernel(Problem problem, const Device& device, const char* architecture) {
  problem.rows = RoutedRows{.items = 100, .deviation = 4, .bytes = 1 << 21};
  const Decisions decisions = decide(problem, device);
  int tried = 0;
  for (const Candidate& candidate : candidates(decisions)) {
    if (!candidate.dropped.empty() || ++tried > 8) break;
    const auto binary = cuda::compile(compile(decisions, candidate.schedule).source, architecture);
    if (binary.spill_bytes == 0) return true;
  }
  return false;
}

// As for a linear layer, of the first eight choices one at least does not spill.
TEST(ExpertKernels, have_a_choice_that_does_not_spill) {
  for (const auto& [name, architecture] :
       {std::pair{"h200", "sm_90a"}, {"a100", "sm_80"}, {"t4", "sm_75"}}) {
    for (const std::int64_t rows : {8, 32, 64, 128}) {
      Problem problem = linear_of(ttype("uint4,group=128,scale=float16,zero=midpoint"), 1536, 2048,
                                  Scalar::f16, rows);
      problem.set_bias(true);
      EXPECT_TRUE(has_a_kernel(problem, device(name), architecture)) << name << ", " << rows;
    }
  }
}

// Each that spills costs an engine that starts a compilation more.
TEST(ExpertKernels, of_gpt_oss_begin_with_a_choice_that_does_not_spill) {
  for (const std::int64_t items : {4, 16, 32}) {
    Problem problem = experts_of(ttype("mxfp4"), 5760, 2880, Scalar::bf16, 8,
                                 {.items = items, .deviation = items / 10, .bytes = 9 << 20});
    problem.set_bias(true);
    problem.set_gate(Gating{});
    const auto kernel = compile(problem, device("h200"), true);
    expect_no_spills(kernel.source, to_string(kernel.schedule), "sm_90a");
  }
}

// Of mixtures of fp8, and of int4 beside both formats.
TEST(ExpertKernels, of_activations_of_8_bits_have_a_choice_that_does_not_spill) {
  for (const auto& [name, architecture] :
       {std::pair{"h200", "sm_90a"}, {"l40s", "sm_89"}, {"b200", "sm_100a"}}) {
    for (const auto& [type, x] : {std::pair{"float8_e4m3,group=128,scale=float32", Scalar::e4m3},
                                  {"int4,group=128,scale=bfloat16", Scalar::e4m3},
                                  {"int8,channel,scale=float32", Scalar::s8}}) {
      for (const std::int64_t rows : {16, 128}) {
        Problem problem = linear_of(ttype(type), 1536, 2048, Scalar::bf16, rows);
        problem.set_bias(true);
        problem.round_x(x);
        EXPECT_TRUE(has_a_kernel(problem, device(name), architecture))
            << type << " on " << name << ", " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace ladder
