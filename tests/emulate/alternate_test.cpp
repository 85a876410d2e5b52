// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels whose waves alternate, run on this processor (machine.h), which counts
// barriers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "codegen/hip/emit.h"
#include "linear_emulated.h"
#include "machine.h"
#include "program/alternate_cases.h"
#include "translate.h"

namespace ladder {
namespace {

using testing::alternate_case;
using testing::Case;
using testing::expect_exact;
using testing::kAlternatingShapes;
using testing::LinearCase;
using testing::objection_to;

// Of scaled sums, scaled operands, tables, zero points, and bytes.
TEST(Emulated, kernels_whose_waves_alternate_are_exact) {
  for (const char* name : {"mi210", "mi300x", "mi355x"}) {
    std::vector<Case> cases;
    unsigned turn = 0;
    const auto add = [&](const char* type, Scalar activation, Route route, std::optional<Scalar> x,
                         ScalePlace place) {
      const auto reduction = ++turn % 2 == 0 ? Reduction::ordered : Reduction::none;
      for (auto [problem, schedule] :
           testing::some_alternate_case(turn, ttype(type), activation, reduction, route,
                                        device(name), 2 + turn % 3, x, place)) {
        problem.set_bias(turn % 2 == 0);
        cases.push_back({problem, schedule});
      }
    };
    for (const char* type : {"uint4,group=128,scale=float16", "nf4", "int8",
                             "uint2,group=64,scale=float16,zero=integer"}) {
      add(type, Scalar::f16, Route::multiply_add, {}, ScalePlace::usual);
      add(type, Scalar::f16, Route::multiply_add, {}, ScalePlace::rounded);
    }
    add("mxfp4", Scalar::bf16, Route::multiply_add, {}, ScalePlace::usual);
    add("uint4,channel,scale=float16", Scalar::f16, Route::bytes, Scalar::s8, ScalePlace::usual);
    ASSERT_GE(cases.size(), 6U) << name;
    expect_exact(cases, device(name), 2);
  }
}

/// `kernel` with one call of `what` after the other taken out, each as an empty statement.
std::vector<std::string> without_each(const std::string& text, const std::string& what) {
  std::vector<std::string> out;
  for (auto at = text.find(what, text.rfind("KERNEL(")); at != std::string::npos;
       at = text.find(what, at + 1)) {
    out.push_back(text);
    out.back().replace(at, what.size(), ";");
  }
  return out;
}

// The first half's own barrier, the second half's, and each of a phase: if order shows none, two
// waves of a SIMD multiply at a time.
TEST(Emulated, kernels_whose_waves_alternate_are_wrong_without_one_barrier) {
  const Device& mi300x = device("mi300x");
  const auto cases =
      alternate_case(kAlternatingShapes[0], ttype("uint4,group=64,scale=float16"), Scalar::f16,
                     Reduction::ordered, Route::multiply_add, mi300x, 3);
  ASSERT_EQ(cases.size(), 1U);
  const auto& [problem, schedule] = cases.front();
  const Program program = lower(decide(problem, mi300x), schedule);
  const auto text = hip::emit(program);
  std::vector<emulate::Source> sources{{text, program.name}};
  for (const auto& slipped : without_each(text, "phase_barrier();")) {
    sources.push_back({slipped, program.name});
  }
  ASSERT_EQ(sources.size(), 1U + 2 + 8 + 7);
  // The halves keep step: nothing is wrong but that they do.
  const std::string second = "if (in_second_half(512u)) ", first = "if (!in_second_half(512u)) ";
  auto in_step = text;
  for (const auto& half : {second, first}) {
    const auto at = in_step.find(half + "phase_barrier();");
    ASSERT_NE(at, std::string::npos);
    in_step.replace(at, half.size() + 16, ";");
  }
  sources.push_back({in_step, program.name});
  const auto kernels = emulate::load(sources, emulate::Language::hip);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::string why;
    for (unsigned seed = 1; seed <= 8 && why.empty(); ++seed) {
      const auto data = LinearCase::integers(problem, problem.m, seed);
      why = objection_to({problem, schedule}, mi300x, program, kernels[i], data, seed);
    }
    EXPECT_EQ(why.empty(), i == 0) << i << ": " << why;
    if (i + 1 == sources.size()) {
      EXPECT_EQ(why, "two waves of a SIMD have priority between the same barriers");
    }
  }
}

}  // namespace
}  // namespace ladder
