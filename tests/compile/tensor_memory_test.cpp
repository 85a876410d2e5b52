// SPDX-License-Identifier: Apache-2.0
//
// Kernels with tensor memory, by NVRTC for the devices that have it.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "program/tensor_cases.h"

namespace ladder {
namespace {

using testing::unproven_b200;

class TensorMemory : public ::testing::TestWithParam<const char*> {};

// Each tile of the space that is kept, once without parts of K and once with.
TEST_P(TensorMemory, compiles_without_spills) {
  std::set<std::tuple<int, int, bool>> seen;  // rows, tokens, parts
  const std::string text = GetParam();
  const bool bf16 = text == "mxfp4";  // float16 has not the scales of e8m0
  const bool own = text.find("scale=") != text.npos || text.find(',') == text.npos;
  for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
    if (bf16 && activation == Scalar::f16) continue;
    const std::string scale = activation == Scalar::f16 ? "float16" : "bfloat16";
    const TType& type = ttype(own ? text : text + ",scale=" + scale);
    for (const std::int64_t m : {72, 256}) {
      const Problem problem = linear_of(type, 4096, 4096, activation, m);
      const Decisions decisions = decide(problem, unproven_b200());
      for (const TileSchedule& s : tile_space(decisions, false)) {
        if (!s.tensor_memory || !objection(s, decisions).empty()) continue;
        if (!seen.insert({s.rows, s.tokens, s.reduction != Reduction::none}).second) continue;
        const auto source = compile(decisions, s).source;
        for (const char* architecture : {"sm_100a", "sm_103a"}) {
          if (architecture != std::string("sm_100a") && seen.size() > 1) continue;
          EXPECT_EQ(rejection(cuda::compile(source, architecture)), "")
              << architecture << ": " << to_string(problem) << "; " << to_string(s);
        }
      }
    }
  }
  EXPECT_GE(seen.size(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Types, TensorMemory, ::testing::ValuesIn(testing::kTensorTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
