// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels of waves, run on this processor (machine.h).
#include <gtest/gtest.h>

#include <array>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "codegen/hip/emit.h"
#include "expr/constructors.h"
#include "linear_emulated.h"
#include "machine.h"
#include "pipelines/schedule.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/wave_cases.h"
#include "translate.h"

namespace ladder {
namespace {

using testing::Case;
using testing::expect_exact;
using testing::LinearCase;
using testing::objection_to;

TEST(Emulated, wave_kernels_of_every_shape_are_exact) {
  std::vector<Case> cases;
  for (const auto& [problem, schedule] : testing::wave_cases(device("mi210"))) {
    cases.push_back({problem, schedule});
  }
  ASSERT_GT(cases.size(), 20U);
  expect_exact(cases, device("mi210"), 1);
}

// Of instructions of 32 columns.
TEST(Emulated, wave_kernels_of_cdna_4_are_exact) {
  const Device& mi355x = device("mi355x");
  std::vector<Case> cases;
  unsigned turn = 0;
  for (const auto& [problem, schedule] : testing::wave_cases(mi355x)) {
    if (++turn % 2 == 0) cases.push_back({problem, schedule});
  }
  ASSERT_GT(cases.size(), 10U);
  expect_exact(cases, mi355x, 1);
}

TEST(Emulated, kernels_of_few_tokens_are_exact) {
  for (const char* name : {"mi210", "mi300x", "mi355x"}) {
    std::vector<Case> cases;
    unsigned turn = 0;
    for (const char* type : testing::kKindsOfTypes) {
      for (const auto products : {WaveProducts::blocks, WaveProducts::dots}) {
        ++turn;
        const auto x = turn % 4 < 2 ? Scalar::f16 : Scalar::bf16;
        try {
          for (const auto& [problem, schedule] :
               testing::few_tokens_case(ttype(type), x, products, turn, device(name))) {
            cases.push_back({problem, schedule});
          }
        } catch (const Unsupported&) {
          continue;  // wider than float16
        }
      }
    }
    ASSERT_GT(cases.size(), 10U) << name;
    expect_exact(cases, device(name), 1);
  }
}

TEST(Emulated, kernels_of_waves_of_32_lanes_are_exact) {
  for (const char* name : {"rx7900xtx", "rx9070xt"}) {
    std::vector<Case> cases;
    for (const auto& [problem, schedule] : testing::wave_cases(device(name))) {
      cases.push_back({problem, schedule});
    }
    // Words that begin anywhere in the chunks of the image.
    for (const char* type : {"uint3,group=64,scale=float16", "uint5,group=32,scale=float16",
                             "uint7,channel,scale=float16", "uint1,group=128,scale=float16"}) {
      for (const auto& [problem, schedule] :
           testing::wave_case(testing::kWaveShapes[2], ttype(type), Scalar::f16, Reduction::ordered,
                              Route::multiply_add, device(name))) {
        cases.push_back({problem, schedule});
      }
    }
    ASSERT_GT(cases.size(), 20U) << name;
    expect_exact(cases, device(name), 1);
  }
}

TEST(Emulated, kernels_of_volta_are_exact) {
  const Device& v100 = device("v100");
  std::vector<Case> cases;
  unsigned turn = 0;
  for (const char* type : testing::kKindsOfTypes) {
    for (const auto& shape : testing::kWaveShapes) {
      if (++turn % 4 != 0) continue;
      for (const auto& [problem, schedule] : testing::wave_case(
               shape, ttype(type), Scalar::f16,
               turn % 8 == 0 ? Reduction::none : Reduction::ordered, Route::multiply_add, v100)) {
        cases.push_back({problem, schedule});
      }
    }
    const Problem problem = linear_of(ttype(type), 130, 328, Scalar::f16, turn % 3 == 0 ? 1 : 40);
    cases.push_back({problem, best_schedule(decide(problem, v100))});
  }
  ASSERT_GT(cases.size(), 30U);
  expect_exact(cases, v100, 1);
}

// Without one barrier of a kernel, or one fence of the prelude, some order shows it.
TEST(Emulated, wave_kernels_that_lack_one_barrier_or_fence_are_wrong) {
  const Device& mi300x = device("mi300x");
  std::vector<Case> cases;
  std::vector<Program> programs;
  std::vector<emulate::Source> sources;
  std::vector<std::string> lines;
  const auto add = [&](const Case& c, const Program& program, std::string text, std::size_t at,
                       std::size_t length) {
    lines.push_back(text.substr(at, length));
    cases.push_back(c), programs.push_back(program);
    sources.push_back({text.replace(at, length, ";"), program.name});
  };
  constexpr std::size_t kKernels = 8;
  std::size_t kernels_taken = 0;
  std::vector<std::pair<Problem, WaveSchedule>> all;
  for (const std::size_t shape : {2, 7}) {  // of bytes, with waves along K
    for (const auto& of_bytes : testing::wave_case(
             testing::kWaveShapes[shape], ttype("uint4,group=64,scale=float16,zero=integer"),
             Scalar::f16, Reduction::ordered, Route::bytes, mi300x, 4, Scalar::s8)) {
      all.push_back(of_bytes);
    }
  }
  ASSERT_EQ(all.size(), 2U);
  for (const auto& of_halves : testing::wave_cases(mi300x, 4)) all.push_back(of_halves);
  for (const auto& [problem, schedule] : all) {
    // Waves keep step with themselves.
    if (schedule.waves() == 1 || schedule.reduction != Reduction::ordered) continue;
    if (++kernels_taken > kKernels) break;
    const Program program = lower(decide(problem, mi300x), schedule);
    const std::string text = hip::emit(program), barrier = "barrier();";
    for (auto at = text.find(barrier, text.rfind("KERNEL(")); at != std::string::npos;
         at = text.find(barrier, at + 1)) {
      add({problem, schedule}, program, text, at, barrier.size());
    }
    if (kernels_taken > 1) continue;
    const std::regex fence("__builtin_amdgcn_fence\\([^)]*\\);");
    for (std::sregex_iterator found(text.begin(), text.end(), fence), end; found != end; ++found) {
      add({problem, schedule}, program, text, static_cast<std::size_t>(found->position()),
          static_cast<std::size_t>(found->length()));
    }
  }
  ASSERT_GE(cases.size(), 20U);
  const auto kernels = emulate::load(sources, emulate::Language::hip);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::string why;
    for (unsigned seed = 1; seed <= 16 && why.empty(); ++seed) {
      const auto data = LinearCase::integers(cases[i].problem, cases[i].problem.m, seed);
      why = objection_to(cases[i], mi300x, programs[i], kernels[i], data, seed);
    }
    EXPECT_NE(why, "") << lines[i] << "; " << to_string(cases[i].schedule);
  }
}

}  // namespace
}  // namespace ladder
