// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels with tensor memory, run on this processor: exact, and wrong without any of
// what orders it.
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>
#include <vector>

#include "linear_emulated.h"
#include "program/tensor_cases.h"

namespace ladder {
namespace {

using testing::Case;
using testing::LinearCase;
using testing::unproven_b200;

TEST(EmulatedTensorMemory, kernels_of_every_kind_of_type_are_exact) {
  std::vector<Case> cases;
  for (const auto& [problem, schedule] : testing::tensor_cases())
    cases.push_back({problem, schedule});
  ASSERT_GE(cases.size(), 16U);
  testing::expect_exact(cases, unproven_b200(), 3);
}

struct Act {
  std::string name;
  std::size_t at, length;
};

/// What orders the kernel, from its first statement on.
std::vector<Act> acts_of(const std::string& text) {
  static const std::regex act(
      "\\b(barrier|barrier_of|matrix_fence|tensor_(fence_before|fence_after|wait|commit|alloc|"
      "free)|signal_(init|await|arrive\\w*))\\b[^;]*;");
  const auto begin = text.find("extern \"C\"");
  std::vector<Act> out;
  const auto first = text.begin() + static_cast<std::ptrdiff_t>(begin);
  for (std::sregex_iterator found(first, text.end(), act), end; found != end; ++found) {
    out.push_back({found->str(1), begin + static_cast<std::size_t>(found->position()),
                   static_cast<std::size_t>(found->length())});
  }
  return out;
}

TEST(EmulatedTensorMemory, kernels_that_lack_one_act_of_order_are_wrong) {
  const auto [problem, schedule] =
      testing::tensor_case(testing::kTensorShapes[1], ttype("uint4,group=128,scale=float16"),
                           Scalar::f16, Reduction::none, false, 6)
          .at(0);
  const Case c{problem, schedule};
  const Program program = lower(decide(problem, unproven_b200()), schedule);
  const std::string text = cuda::emit(program);
  const auto acts = acts_of(text);
  std::vector<emulate::Source> sources;
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < acts.size(); ++i) {
    const auto& [name, at, length] = acts[i];
    const bool fence = name.starts_with("tensor_fence");
    const bool last = i + 4 >= acts.size() && i + 1 < acts.size();
    if ((fence && i < 4) || last) continue;
    auto mutant = text;
    lines.push_back(joined(i, ": ", i > 0 ? acts[i - 1].name : "", " | ", text.substr(at, length)));
    mutant.replace(at, length, ";");
    sources.push_back({mutant, program.name});
  }
  ASSERT_GT(sources.size(), 20U);
  const auto kernels = emulate::load(sources, emulate::Language::cuda, unproven_b200().capability);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    std::string why;
    for (unsigned seed = 1; seed <= 16 && why.empty(); ++seed) {
      const auto data = LinearCase::integers(problem, problem.m, seed);
      why = objection_to(c, unproven_b200(), program, kernels[i], data, seed);
    }
    EXPECT_NE(why, "") << lines[i];
  }
}

}  // namespace
}  // namespace ladder
