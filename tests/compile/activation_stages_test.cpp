// SPDX-License-Identifier: Apache-2.0
//
// Kernels whose activations come in rounds, by signals and by barriers: no spills.
#include <gtest/gtest.h>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "integer_layer.h"
#include "pipelines/schedule.h"

namespace ladder {
namespace {

TEST(ActivationStages, compile_without_spills_where_they_are_the_first_choice) {
  int compiled = 0;
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
          const auto binary =
              cuda::compile(compile(decide(problem, target), s).source, target.architecture);
          EXPECT_EQ(binary.spill_bytes + binary.stack_bytes, 0)
              << name << ": " << to_string(problem) << "; " << to_string(s);
          ++compiled;
        }
      }
    }
  }
  EXPECT_EQ(compiled, 16);
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
