// SPDX-License-Identifier: Apache-2.0
//
// Kernels with producers: a consumer that asks for more registers than the producers gave back
// waits forever.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "device/device.h"
#include "expr/constructors.h"
#include "pipelines/tiles/schedule.h"

namespace ladder {
namespace {

class Producers : public ::testing::TestWithParam<const char*> {};

TEST_P(Producers, hand_over_registers_that_consumers_can_have) {
  const Device& h200 = device("h200");
  std::set<std::pair<std::int64_t, int>> seen;  // threads, CTAs of a multiprocessor
  for (const std::int64_t m : {24, 64, 256}) {
    const Problem problem = linear_of(ttype(GetParam()), 4096, 4096, Scalar::f16, m);
    const Decisions decisions = decide(problem, h200);
    for (const TileSchedule& s : tile_space(decisions, false)) {
      if (!s.producers || !objection(s, decisions).empty()) continue;
      if (!seen.insert({s.cta_threads(), s.ctas_per_sm}).second) continue;
      const auto compiled = compile(decisions, s);
      const Program& program = compiled.program;
      const auto binary = cuda::compile(compiled.source, h200.architecture);
      EXPECT_EQ(rejection(binary), "") << to_string(s);
      EXPECT_GE(binary.registers * program.block_threads(),
                program.roles->registers(program.threads))
          << to_string(s);
    }
  }
  EXPECT_GE(seen.size(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Types, Producers,
                         ::testing::Values("uint4,group=128,scale=float16",
                                           "nf4,group=64,scale=float16",
                                           "uint3,group=32,scale=float16,zero=integer"),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
