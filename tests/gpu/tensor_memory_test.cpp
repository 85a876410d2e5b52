// SPDX-License-Identifier: Apache-2.0
//
// Kernels with tensor memory on a GPU of compute capability 10.x, on which nobody has run them: the
// test that an owner of one runs first (docs/new-device.md). It skips elsewhere.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codegen/cuda/toolchain.h"
#include "gpu.h"
#include "linear_on_gpu.h"
#include "program/tensor_cases.h"
#include "runtime/gpus.h"

namespace ladder {
namespace {

using testing::unproven_b200;
using Cases = std::vector<std::pair<Problem, TileSchedule>>;

class TensorMemoryOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_gpu()) GTEST_SKIP() << "no CUDA GPU on this machine";
    if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
    const Properties gpu = gpus().driver.properties(0);
    if (gpu.capability / 10 != unproven_b200().capability / 10) {
      GTEST_SKIP() << gpu.name << " has compute capability " << gpu.capability << ", not 10.x";
    }
    target_ = cuda::target_for(gpu.architecture);
  }

  std::string target_;
};

TEST_F(TensorMemoryOnGpu, kernels_of_every_kind_of_type_are_exact) {
  testing::expect_exact(testing::tensor_cases(), unproven_b200(), target_);
}

// As models have them: many CTAs, long K, tiles of 128 tokens.
TEST_F(TensorMemoryOnGpu, first_choices_for_large_layers_are_exact) {
  Cases cases;
  for (const char* type :
       {"uint4,group=128,scale=float16", "nvfp4", "uint8,channel,scale=float32"}) {
    for (const std::int64_t m : {100, 256, 1024}) {
      const Problem problem = linear_of(ttype(type), 1000, 4096, Scalar::f16, m);
      const Decisions decisions = decide(problem, unproven_b200());
      for (const Candidate& c : candidates(decisions)) {
        const auto* tile = std::get_if<TileSchedule>(&c.schedule);
        if (tile == nullptr || !tile->tensor_memory || !c.dropped.empty()) continue;
        cases.push_back({problem, *tile});
        break;
      }
    }
  }
  ASSERT_FALSE(cases.empty());
  testing::expect_exact(cases, unproven_b200(), target_);
}

}  // namespace
}  // namespace ladder
