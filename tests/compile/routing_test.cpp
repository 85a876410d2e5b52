// SPDX-License-Identifier: Apache-2.0
//
// The kernels around the products of experts, and such products, compile without spills. Needs
// libnvrtc, no GPU.
#include <gtest/gtest.h>

#include "codegen/cuda/toolchain.h"
#include "codegen/routing_kernels.h"
#include "codegen/target.h"
#include "compile.h"
#include "expr/of_ttype.h"

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

// As for a linear layer, of the first eight choices one at least does not spill.
TEST(ExpertKernels, have_a_choice_that_does_not_spill) {
  for (const auto& [name, architecture] :
       {std::pair{"h200", "sm_90a"}, {"a100", "sm_80"}, {"t4", "sm_75"}}) {
    for (const std::int64_t rows : {8, 32, 64, 128}) {
      Linear expr = linear_of(ttype("uint4,group=128,scale=float16,zero=midpoint"), 1536, 2048,
                              Scalar::f16, rows);
      expr.bias = true;
      expr.experts = {.items = 100, .deviation = 4, .bytes = 1 << 21};
      const Decisions decisions = decide(expr, device(name));
      bool found = false;
      int tried = 0;
      for (const Candidate& candidate : candidates(decisions)) {
        if (found || !candidate.dropped.empty() || ++tried > 8) break;
        const auto binary =
            cuda::compile(compile(decisions, candidate.schedule).source, architecture);
        found = binary.spill_bytes == 0;
      }
      EXPECT_TRUE(found) << name << ", " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace ladder
