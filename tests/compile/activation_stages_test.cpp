// SPDX-License-Identifier: Apache-2.0
//
// Kernels whose activations come in rounds, by signals and by barriers: no spills. A run compiles a
// part (turns.h).
#include <gtest/gtest.h>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "integer_layer.h"
#include "pipelines/schedule.h"
#include "turns.h"

namespace ladder {
namespace {

void expect_no_spills(testing::Turns turns) {
  for (const char* name : {"h200", "a100"}) {
    const Device& target = device(name);
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (int tokens : {8, 16}) {
        for (std::int64_t k : {28672, 28672 - 72}) {
          Problem problem = testing::integer_layer(4, 8, 128, activation, tokens, 8192, k);
          testing::set_scale(problem, activation);
          DecodeSchedule s{.tokens = tokens,
                           .warps_n = 4,
                           .warps_k = 2,
                           .blocks_per_warp = 2,
                           .weights = weights::RegisterStages{.k_tiles = 28, .stages = 2},
                           .activations = activations::Staged{.stages = 4},
                           .reduction = Reduction::ordered};
          if (target.signals())
            s.activations = activations::Signalled{.stages = 4, .consumer_lag = 1};
          ASSERT_EQ(objection(s, decide(problem, target)), "") << name;
          if (!turns.next()) continue;
          const auto binary =
              cuda::compile(compile(decide(problem, target), s).source, target.architecture);
          EXPECT_EQ(binary.spill_bytes + binary.stack_bytes, 0)
              << name << ": " << to_string(problem) << "; " << to_string(s);
        }
      }
    }
  }
}

TEST(ActivationStages, compile_without_spills_where_they_are_the_first_choice) {
  expect_no_spills(testing::Turns(5));
}

TEST(DISABLED_WholeActivationStages, compile_without_spills) {
  expect_no_spills(testing::Turns(1));
}

TEST(ActivationStages, are_the_first_choice_for_long_rows) {
  for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
    Problem problem = testing::integer_layer(4, 8, 128, activation, 16, 8192, 28672);
    testing::set_scale(problem, activation);
    const auto first = std::get<DecodeSchedule>(best_schedule(decide(problem, device("h200"))));
    EXPECT_NE(first.signalled(), nullptr) << to_string(first);
  }
}

}  // namespace
}  // namespace ladder
