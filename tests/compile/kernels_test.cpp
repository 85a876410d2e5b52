// SPDX-License-Identifier: Apache-2.0
//
// For cells of the compile matrix (matrix.h) the scheduler's first choices must compile, without
// the warnings by which the assembler says that it gave up an optimisation, and one of them without
// spills: whoever compiles drops a schedule that spills and takes the next, since only the compiler
// knows. Needs libnvrtc, without which all fail, and no GPU.
//
// A run compiles the sample that LADDER_COMPILE_SEED chooses; `make compile-test` takes it from the
// commit, so that every cell comes up over commits. `make compile-matrix` compiles all of them:
// disabled here, since it takes half an hour.
//
// NVRTC compiles one kernel at a time in a process, so run several:
//     GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=0 compile_tests     (`make compile-test` does)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "matrix.h"
#include "pipelines/diversified.h"

namespace ladder {
namespace {

using testing::Cell;

// Candidates that are compiled before a cell counts as one that has no kernel.
constexpr int kTries = 8;

/// Letters and digits only, as names of tests want.
std::string name_of(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [device, problem, tokens] = info.param;
  std::ostringstream name;
  name << device->architecture << '_'
       << (problem.weight.element != nullptr ? std::string(problem.weight.element->name)
                                             : "u" + std::to_string(problem.weight.bits))
       << '_' << ladder::name_of(problem.activation()) << '_' << problem.n << 'x' << problem.k
       << '_' << info.index;
  return name.str();
}

std::vector<Cell> sample_of_this_run() {
  const char* seed = std::getenv("LADDER_COMPILE_SEED");
  std::vector<Cell> out;
  for (const Cell* cell : testing::sample(seed ? std::strtoull(seed, nullptr, 10) : 0)) {
    out.push_back(*cell);
  }
  return out;
}

std::vector<Cell> every_cell() {
  std::vector<Cell> out;
  for (const auto& stratum : testing::strata()) {
    out.insert(out.end(), stratum.cells.begin(), stratum.cells.end());
  }
  return out;
}

class Kernels : public ::testing::TestWithParam<Cell> {};

TEST_P(Kernels, of_the_first_choices_one_compiles_without_spills) {
  auto [device, problem, tokens] = GetParam();
  std::set<std::string> without_spills;  // texts: numbers of tokens may share them
  for (const auto m : tokens) {
    problem.m = m;
    const auto choices = diversified(candidates(decide(problem, *device)), kTries);
    std::string spilled;
    bool found = false;
    if (is_dense(choices.front().schedule)) continue;
    for (int i = 0; i < kTries && choices[i].dropped.empty() && !found; ++i) {
      const auto& schedule = choices[i].schedule;
      if (is_dense(schedule)) continue;
      const auto source = compile(decide(problem, *device), schedule).source;
      found = without_spills.contains(source);
      if (found) break;
      const auto binary = cuda::compile(source, device->architecture);
      EXPECT_EQ(binary.warning, "") << m << " tokens: " << to_string(schedule);
      found = binary.spill_bytes == 0 && binary.stack_bytes == 0;
      if (found) without_spills.insert(source);
      spilled += "\n  " + std::to_string(binary.spill_bytes) + " bytes: " + to_string(schedule);
    }
    EXPECT_TRUE(found) << m << " tokens: all spill:" << spilled;
  }
}

INSTANTIATE_TEST_SUITE_P(Sample, Kernels, ::testing::ValuesIn(sample_of_this_run()), name_of);
// `make compile-matrix` runs it.
INSTANTIATE_TEST_SUITE_P(DISABLED_Whole, Kernels, ::testing::ValuesIn(every_cell()), name_of);

}  // namespace
}  // namespace ladder
