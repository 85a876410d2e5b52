// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the V100 on whatever GPU this machine has: their text is compiled to PTX
// of compute_75, the oldest that NVRTC 13 knows, which has the instruction of Volta. So text and
// schedule are as a V100 has them, and the silicon does what PTX says of mma.m8n8k4.
#include <gtest/gtest.h>

#include <vector>

#include "codegen/cuda/toolchain.h"
#include "gpu.h"
#include "linear_on_gpu.h"
#include "program/turing_cases.h"
#include "program/wave_cases.h"

namespace ladder {
namespace {

using testing::Scheduled;

void expect_exact(const std::vector<Scheduled>& cases) {
  testing::expect_exact(cases, device("v100"), "compute_75", ".target sm_75");
}

class VoltaOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_gpu()) GTEST_SKIP() << "no CUDA GPU on this machine";
    if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  }
};

TEST_F(VoltaOnGpu, kernels_of_every_shape_are_exact) {
  std::vector<Scheduled> cases;
  unsigned turn = 0;
  for (const char* type : testing::kKindsOfTypes) {
    for (const auto& shape : testing::kWaveShapes) {
      if (++turn % 3 != 0) continue;
      for (const Route route : {Route::multiply_add, Route::in_place}) {
        for (const auto& [problem, schedule] : testing::wave_case(
                 shape, ttype(type), Scalar::f16,
                 turn % 2 == 0 ? Reduction::none : Reduction::ordered, route, device("v100"))) {
          cases.push_back({problem, schedule});
        }
      }
    }
  }
  ASSERT_GE(cases.size(), 40U);
  expect_exact(cases);
}

// As models have them: several CTAs of a multiprocessor, many of the grid.
TEST_F(VoltaOnGpu, first_choices_for_large_layers_are_exact) {
  std::vector<Scheduled> cases;
  for (const char* type :
       {"uint4,group=128,scale=float16,zero=midpoint", "nf4,group=64,scale=float16",
        "uint2,group=64,scale=float16", "uint3,group=128,scale=float16"}) {
    for (const std::int64_t m : {1, 16, 64, 200}) {
      const Problem problem =
          linear_of(ttype(type), m > 16 ? 1000 : 4096, m > 16 ? 2048 : 4096, Scalar::f16, m);
      const auto all = candidates(decide(problem, device("v100")));
      for (std::size_t i = 0; i < 2 && all[i].dropped.empty(); ++i) {
        if (!is_dense(all[i].schedule)) cases.push_back({problem, all[i].schedule});
      }
    }
  }
  expect_exact(cases);
}

}  // namespace
}  // namespace ladder
