// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the products of a batch, one launch for all, through the interpreter: exact on
// integers.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "compile.h"
#include "program/batch_case.h"

namespace ladder {
namespace {

using testing::BatchCase;

Problem batch_of(const Problem& type, std::int64_t batch, std::int64_t passes) {
  Problem out = type;
  out.batch = batch, out.passes = passes;
  return out;
}

TEST(Batch, is_exact_in_every_pipeline) {
  std::set<std::string> pipelines;
  unsigned seed = 0;
  for (const char* name : {"h200", "a100", "mi300x"}) {
    const Device& on = device(name);
    for (const std::int64_t rows : {8, 32, 64}) {
      for (const Problem& type : testing::expert_types(rows, 72, 256)) {
        // The last item of each product has fewer rows, or there is one that has few.
        const std::int64_t m = ++seed % 2 == 0 ? 3 : 2 * rows + 5;
        const auto data = BatchCase::integers(batch_of(type, 3, ceil_div(m, rows)), m, seed);
        std::size_t taken = 0;
        for (const Schedule& schedule :
             testing::expert_schedules(data.problem, on, seed % 2 == 0)) {
          if ((taken++ + seed) % 4 != 0) continue;
          const Program program = lower(decide(data.problem, on), schedule);
          verify(program, on.shared_per_block_bytes);
          ASSERT_EQ(data.objection_to(program, schedule), "")
              << to_string(data.problem) << " on " << name << "; " << to_string(schedule);
          pipelines.insert(name + std::to_string(schedule.index()));
        }
      }
    }
  }
  EXPECT_GE(pipelines.size(), 5U);  // decode and tiles of both of NVIDIA's, waves
}

TEST(Batch, of_activations_of_8_bits_has_the_scales_of_its_rows) {
  const Device& on = device("h200");
  for (const Problem& type : testing::expert_types_of_bytes(32, 72, 256, on)) {
    const auto data = BatchCase::integers(batch_of(type, 2, 2), 40, 5);
    const Decisions decisions = decide(data.problem, on);
    const Schedule schedule = best_schedule(decisions);
    EXPECT_EQ(data.objection_to(lower(decisions, schedule), schedule), "");
  }
}

TEST(Batch, items_are_counted_in_whole_groups) {
  const Items items{.together = 4, .weights = 3, .rows = 8};
  EXPECT_EQ(count_of(items, 17), 12);  // nine
  const auto is = [&](std::int64_t item, ItemRows wanted) {
    const auto [weight, first, rows] = rows_of(items, item, 17);
    EXPECT_EQ(rows, wanted.rows);
    if (rows == 0) return;
    EXPECT_EQ(std::pair(weight, first), std::pair(wanted.weight, wanted.first));
  };
  is(0, {0, 0, 8});
  is(2, {0, 16, 1});
  is(3, {1, 17, 8});
  is(8, {2, 50, 1});
  is(9, {3, 51, 0});
}

TEST(Batch, texts_say_which_weight_an_item_has) {
  const Problem problem = batch_of(testing::expert_types(8, 128, 256).front(), 4, 1);
  const auto text = compile(problem, device("h200")).source;
  EXPECT_NE(text.find("of_weight = (tokens + 7u) / 8u"), std::string::npos);
  EXPECT_NE(text.find("x += (unsigned long long)item[1] * 256"), std::string::npos);
  EXPECT_EQ(text.find("items"), std::string::npos);
}

/// What the program would read beyond the last weight.
TEST(Batch, of_other_weights_or_rows_is_wrong) {
  const Device& on = device("h200");
  const auto data =
      BatchCase::integers(batch_of(testing::expert_types(64, 72, 256).front(), 3, 2), 70, 1);
  const Decisions decisions = decide(data.problem, on);
  const Schedule schedule = best_schedule(decisions);
  const Program program = lower(decisions, schedule);
  ASSERT_EQ(data.objection_to(program, schedule), "");
  Program other = program;
  other.items->rows = 32;
  EXPECT_EQ(data.objection_to(other, schedule), "");  // more items of fewer rows
  other = program;
  other.items->weights = 2;
  EXPECT_NE(data.objection_to(other, schedule), "");
  other = program;
  other.items->shifts.front().elements += 4;
  EXPECT_NE(data.objection_to(other, schedule), "");
  other = program;
  other.items->rows = 0;
  EXPECT_THROW(verify(other, on.shared_per_block_bytes), InternalError);
}

}  // namespace
}  // namespace ladder
