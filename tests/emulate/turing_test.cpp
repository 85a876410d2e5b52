// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels for the row of the T4, run on this processor as sm_75 compiles it: products
// by its own instructions, and copies that end at once.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "codegen/cuda/emit.h"
#include "linear_emulated.h"
#include "program/turing_cases.h"

namespace ladder {
namespace {

using testing::Case;
using testing::expect_exact;
using testing::Scheduled;

std::vector<Case> every(const std::vector<Scheduled>& cases, std::size_t stride) {
  std::vector<Case> out;
  for (std::size_t i = 0; i < cases.size(); i += stride) {
    out.push_back({cases[i].first, cases[i].second});
  }
  return out;
}

TEST(EmulatedTuring, kernels_of_every_shape_are_exact) {
  expect_exact(every(testing::turing_shapes(), 2), device("t4"));
}

TEST(EmulatedTuring, kernels_of_bytes_are_exact) {
  expect_exact(every(testing::turing_bytes(), 1), device("t4"));
}

TEST(EmulatedTuring, first_choices_are_right) {
  expect_exact(every(testing::turing_choices(), 2), device("t4"), 1);
}

// Without one barrier of a kernel some order of its warps shows it.
TEST(EmulatedTuring, kernels_that_lack_one_barrier_are_wrong) {
  const Device& t4 = device("t4");
  constexpr std::size_t kKernels = 8;
  std::vector<Case> cases;
  std::vector<Program> programs;
  std::vector<emulate::Source> sources;
  std::size_t taken = 0;
  for (const auto& [problem, schedule] : testing::turing_shapes()) {
    // Lanes of one warp keep step.
    const Program program = lower(decide(problem, t4), schedule);
    if (program.threads == 32) continue;
    const bool tiles = std::holds_alternative<TileSchedule>(schedule);
    if (taken >= (tiles ? kKernels : kKernels / 2)) continue;
    ++taken;
    const std::string text = cuda::emit(program), barrier = "barrier();";
    for (auto at = text.find(barrier, text.find("extern \"C\"")); at != std::string::npos;
         at = text.find(barrier, at + 1)) {
      cases.push_back({problem, schedule}), programs.push_back(program);
      sources.push_back({std::string(text).replace(at, barrier.size(), ";"), program.name});
    }
  }
  ASSERT_GE(cases.size(), 16U);
  const auto kernels = emulate::load(sources, emulate::Language::cuda, t4.capability);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::string why;
    for (unsigned seed = 1; seed <= 16 && why.empty(); ++seed) {
      const auto data = testing::LinearCase::integers(cases[i].problem, cases[i].problem.m, seed);
      why = testing::objection_to(cases[i], t4, programs[i], kernels[i], data, seed);
    }
    EXPECT_NE(why, "") << to_string(cases[i].schedule);
  }
}

}  // namespace
}  // namespace ladder
