// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the T4 on whatever GPU this machine has: they are compiled to PTX of
// compute_75, which the driver compiles for its own architecture. So the instructions are Turing's,
// the text and its schedule as a T4 has them, and the silicon does what PTX says of them. What only
// a T4 can show remains: its own assembler's code, its 64 KiB of shared memory, and times.
#include <gtest/gtest.h>

#include <vector>

#include "codegen/cuda/toolchain.h"
#include "gpu.h"
#include "linear_on_gpu.h"
#include "program/turing_cases.h"

namespace ladder {
namespace {

using testing::Scheduled;

constexpr const char* kPtx = "compute_75";

void expect_exact(const std::vector<Scheduled>& cases) {
  testing::expect_exact(cases, device("t4"), kPtx, ".target sm_75");
}

class TuringOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_gpu()) GTEST_SKIP() << "no CUDA GPU on this machine";
    if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  }
};

TEST_F(TuringOnGpu, kernels_of_every_shape_are_exact) { expect_exact(testing::turing_shapes()); }

TEST_F(TuringOnGpu, kernels_of_bytes_are_exact) { expect_exact(testing::turing_bytes()); }

TEST_F(TuringOnGpu, first_choices_for_every_kind_of_type_are_right) {
  expect_exact(testing::turing_choices());
}

// As models have them: several CTAs of a multiprocessor, many of the grid.
TEST_F(TuringOnGpu, first_choices_for_large_layers_are_exact) {
  std::vector<Scheduled> cases;
  for (const char* type : {"uint4,group=128,scale=float16,zero=midpoint", "mxfp4",
                           "uint2,group=64,scale=float16", "uint3,group=128,scale=float16"}) {
    for (const std::int64_t m : {1, 16, 64, 200}) {
      const Problem problem =
          linear_of(ttype(type), m > 16 ? 1000 : 4096, m > 16 ? 2048 : 4096, Scalar::f16, m);
      const auto all = candidates(decide(problem, device("t4")));
      for (std::size_t i = 0; i < 2 && all[i].dropped.empty(); ++i) {
        if (!is_dense(all[i].schedule)) cases.push_back({problem, all[i].schedule});
      }
    }
  }
  expect_exact(cases);
}

}  // namespace
}  // namespace ladder
