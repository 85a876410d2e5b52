// SPDX-License-Identifier: Apache-2.0
//
// Kernels of convolutions, whose copies compute where windows lie, beside products that want the
// same registers.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <tuple>

#include "base/joined.h"
#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "device/device.h"
#include "expr/constructors.h"
#include "pipelines/diversified.h"
#include "turns.h"

namespace ladder {
namespace {

/// Of which one must do: as many as the first call tries (runtime/plan.cpp).
constexpr std::size_t kTried = 8;

class WindowsOf : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

void expect_no_spills(const char* name, const char* type, testing::Turns turns) {
  const Device& on = device(name);
  int rejected = 0, compiled = 0;
  for (const std::int64_t channels : {128, 13}) {
    for (const std::int64_t rows : {32, 128, 256}) {
      if (!turns.next()) continue;
      const Windows windows{{.size = 28, .taps = 3, .padding = 1},
                            {.size = 28, .taps = 3, .stride = 2, .padding = 1},
                            channels};
      // Groups follow the columns of a window.
      Problem problem = windows_of(windows, ttype(type), 256, Scalar::f16, rows);
      problem.passes = 8192 / rows;
      problem.set_bias(true);
      const Decisions decisions = decide(problem, on);
      bool found = false;
      for (const Candidate& c : diversified(candidates(decisions, true), kTried)) {
        if (!c.dropped.empty() || found) break;
        const auto binary = cuda::compile(compile(decisions, c.schedule).source, on.architecture);
        found = rejection(binary).empty();
        ++(found ? compiled : rejected);
      }
      EXPECT_TRUE(found) << to_string(problem);
    }
  }
  std::cout << compiled << " compiled, " << rejected << " rejected before\n";
}

// Of six sizes one or two.
TEST_P(WindowsOf, compile_without_spills) {
  const auto& [name, type] = GetParam();
  expect_no_spills(name, type, testing::Turns(5, joined(name, type)));
}

const auto kEvery =
    ::testing::Combine(::testing::Values("a100", "l40s", "h200", "b200", "t4"),
                       ::testing::Values("uint4,channel,scale=float16", "nf4,channel,scale=float16",
                                         "uint4,group=64,scale=float16,zero=integer"));
INSTANTIATE_TEST_SUITE_P(Devices, WindowsOf, kEvery,
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

class WholeWindows : public WindowsOf {};

TEST_P(WholeWindows, compile_without_spills) {
  const auto& [name, type] = GetParam();
  expect_no_spills(name, type, testing::Turns(1));
}

INSTANTIATE_TEST_SUITE_P(DISABLED_Whole, WholeWindows, kEvery,
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
