// SPDX-License-Identifier: Apache-2.0
//
// Kernels of convolutions, which read the windows of images on the way to shared memory, through
// the interpreter: exact on integers.
#include <gtest/gtest.h>

#include <exception>
#include <set>
#include <string>

#include "codegen/target.h"
#include "compile.h"
#include "program/batch_case.h"

namespace ladder {
namespace {

using testing::BatchCase;

Problem windows(const Windows& of, const char* type, std::int64_t of_item, std::int64_t m) {
  Problem out = windows_of(of, ttype(type), 72, Scalar::f16, of_item);
  out.passes = ceil_div(m, of_item);
  out.set_bias(true);
  return out;
}

TEST(Windows, are_exact_at_every_border) {
  std::set<std::string> kinds;
  unsigned seed = 0;
  for (const char* name : {"h200", "a100", "t4"}) {
    const Device& on = device(name);
    for (const std::int64_t channels : {13, 24, 44, 64}) {
      for (const Windows& of : testing::kinds_of_windows(channels)) {
        if (of.columns() <= 64) continue;  // one k-tile, which no tile kernel has
        for (const char* type : {"uint4", "float6_e3m2"}) {
          // Two images and a part of a third, in items of 32.
          const auto m = 2 * of.positions() + 1;
          const auto data = BatchCase::integers(windows(of, type, 32, m), m, ++seed);
          std::size_t taken = 0;
          for (const Schedule& schedule :
               testing::expert_schedules(data.problem, on, seed % 2 == 0)) {
            if ((taken++ + seed) % 3 != 0) continue;
            const Program program = lower(decide(data.problem, on), schedule);
            verify(program, on.shared_per_block_bytes);
            ASSERT_EQ(data.objection_to(program, schedule), "")
                << to_string(data.problem) << " on " << name << "; " << to_string(schedule);
            kinds.insert(name + std::string(channels % 8 == 0 ? " pieces" : " numbers"));
          }
        }
      }
    }
  }
  EXPECT_EQ(kinds.size(), 6U);
}

TEST(Windows, with_permuted_columns_are_exact) {
  const Device& on = device("h200");
  const Windows of = testing::kinds_of_windows(8).front();
  Problem problem = windows(of, "uint4", 32, 40);
  problem.permuted_columns = true;
  const auto data = BatchCase::integers(problem, 40, 3);
  const Decisions decisions = decide(problem, on);
  const Schedule schedule = best_schedule(decisions);
  EXPECT_EQ(data.objection_to(lower(decisions, schedule), schedule), "");
}

/// Each number of the geometry counts.
TEST(Windows, of_another_geometry_are_wrong) {
  const Device& on = device("h200");
  const Windows of{{.size = 9, .taps = 3, .stride = 2, .padding = 1, .dilation = 2},
                   {.size = 8, .taps = 2, .stride = 3, .padding = 2, .dilation = 3},
                   16};
  const auto m = 2 * of.positions();
  const auto data = BatchCase::integers(windows(of, "uint4", 32, m), m, 1);
  const Decisions decisions = decide(data.problem, on);
  const Schedule schedule = best_schedule(decisions);
  const Program program = lower(decisions, schedule);
  ASSERT_EQ(data.objection_to(program, schedule), "");
  for (const auto axis : {&Windows::y, &Windows::x}) {
    for (const auto number :
         {&WindowAxis::size, &WindowAxis::stride, &WindowAxis::padding, &WindowAxis::dilation}) {
      Program other = program;
      for (View& view : other.views) {
        if (view.windows) (*view.windows).*axis.*number -= 1;
      }
      bool refused = false;
      try {
        refused = !data.objection_to(other, schedule).empty();
      } catch (const std::exception&) {
        refused = true;
      }
      EXPECT_TRUE(refused);
    }
  }
}

TEST(Windows, are_read_by_copies_of_items_only) {
  const Device& on = device("h200");
  const Problem problem = windows(testing::kinds_of_windows(8).front(), "uint4", 32, 40);
  const Program program = compile(problem, on).program;
  EXPECT_NO_THROW(verify(program, on.shared_per_block_bytes));
  Program other = program;
  other.items.reset();
  EXPECT_THROW(verify(other, on.shared_per_block_bytes), InternalError);
  other = program;
  for (View& view : other.views) {
    if (view.windows) view.windows->channels = 12, view.extents[1] = view.windows->columns();
  }
  EXPECT_THROW(verify(other, on.shared_per_block_bytes), InternalError);  // no pieces of 16 bytes
}

TEST(Windows, are_not_for_waves_nor_bytes) {
  const Windows of = testing::kinds_of_windows(8).front();
  EXPECT_THROW(decide(windows(of, "uint4", 32, 40), device("mi300x")), Unsupported);
  Problem bytes = windows(testing::kinds_of_windows(16).front(), "uint4", 32, 40);
  bytes.round_x(Scalar::s8);
  EXPECT_THROW(decide(bytes, device("h200")), Unsupported);
}

}  // namespace
}  // namespace ladder
