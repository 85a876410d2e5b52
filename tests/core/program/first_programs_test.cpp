// SPDX-License-Identifier: Apache-2.0
//
// Lowering writes the order of a program down, since deriving it takes longer than all else before
// the source does. Here what it wrote is held to what the passes derive, for the schedules that are
// compiled and timed: the first of every kind of type, shape, activation and border.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "expr/constructors.h"
#include "pipelines/lower.h"
#include "program/kinds_of_types.h"
#include "program/passes.h"

namespace ladder {
namespace {

// Of those that a first call times, the share that tests have time for.
constexpr std::size_t kFirst = 4;

class FirstPrograms : public ::testing::TestWithParam<const char*> {
 protected:
  /// Calls `visit(schedule, program)` for the first schedules of each layer.
  template <class Visit>
  static void each(const Visit& visit) {
    unsigned layer = 0;
    for (const char* name : {"h200", "a100"}) {
      for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{4096, 4096},
                                 {28672, 8192},
                                 {8192, 28672},
                                 {100, 328}}) {
        for (std::int64_t m : {1, 8, 16, 32}) {
          ++layer;
          const auto activation = layer % 2 == 0 ? Scalar::f16 : Scalar::bf16;
          Problem problem = linear_of(ttype(GetParam()), n, k, activation, m);
          problem.set_bias(layer % 3 == 0), problem.permuted_columns = layer % 5 == 0;
          const auto all = candidates(decide(problem, device(name)));
          for (std::size_t i = 0; i < std::min(kFirst, all.size()) && all[i].dropped.empty(); ++i) {
            visit(all[i].schedule, lower(decide(problem, device(name)), all[i].schedule));
          }
        }
      }
    }
  }
};

TEST_P(FirstPrograms, have_exactly_the_barriers_that_are_needed) {
  int seen = 0;
  each([&](const Schedule& schedule, const Program& program) {
    ++seen;
    const Program derived = with_barriers(program);
    // Lanes of a tile kernel may copy the very codes that they read themselves: then the barrier of
    // a k-tile could come after the copies of codes. It comes before all copies.
    if (std::holds_alternative<TileSchedule>(schedule)) {
      EXPECT_EQ(count_barriers(derived), count_barriers(program)) << to_string(schedule);
    } else {
      EXPECT_EQ(to_string(derived), to_string(program)) << to_string(schedule);
    }
  });
  EXPECT_GE(seen, 24);
}

// A pass that finds a loop which waits for what the same trip copied would start copies ahead.
TEST_P(FirstPrograms, have_no_copies_left_to_start_ahead) {
  each([&](const Schedule& schedule, const Program& program) {
    EXPECT_EQ(to_string(with_pipeline(program, 2)), to_string(program)) << to_string(schedule);
  });
}

INSTANTIATE_TEST_SUITE_P(Types, FirstPrograms, ::testing::ValuesIn(testing::kKindsOfTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

}  // namespace
}  // namespace ladder
