// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the items of a table, one launch for all experts, through the interpreter: exact on
// integers, for every pipeline and every way in which parts of K are added up.
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "codegen/target.h"
#include "compile.h"
#include "expr/constructors.h"
#include "program/expert_case.h"
#include "program/interpret.h"

namespace ladder {
namespace {

using testing::ExpertCase;

/// What becomes of y when `program` runs for the items of `data`.
std::string objection_to(const Program& program, const Schedule& schedule, const ExpertCase& data) {
  std::vector<Argument> memory;
  std::size_t y = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.level != Level::global) continue;
    if (buffer.name == "y") y = memory.size();
    memory.push_back(testing::as_read(data.argument(buffer.name, schedule), buffer.scalar));
  }
  try {
    interpret(program, memory, 0);
  } catch (const InternalError& error) {
    return error.what();
  }
  return data.objection_to(memory[y]);
}

/// Programs for the types that `types_of` has are right on each device; `seen` hears of each.
void expect_exact(
    std::initializer_list<const char*> names, std::initializer_list<std::int64_t> all_rows,
    const std::function<std::vector<Problem>(std::int64_t rows, const Device&)>& types_of,
    const std::function<void(const char* name, const Problem&, const Schedule&)>& seen) {
  unsigned seed = 0;
  for (const char* name : names) {
    const Device& on = device(name);
    for (const std::int64_t rows : all_rows) {
      for (const Problem& type : types_of(rows, on)) {
        const auto data = ExpertCase::integers(type, ++seed);
        std::size_t taken = 0;
        for (const Schedule& schedule :
             testing::expert_schedules(data.problem, on, seed % 2 == 0)) {
          // Few of each type: over all types, all ways come by.
          if ((taken++ + seed) % 4 != 0) continue;
          const Program program = lower(decide(data.problem, on), schedule);
          verify(program, on.shared_per_block_bytes);
          ASSERT_EQ(objection_to(program, schedule, data), "")
              << to_string(data.problem) << " on " << name << "; " << to_string(schedule);
          seen(name, type, schedule);
        }
      }
    }
  }
}

TEST(Experts, are_exact_in_every_pipeline) {
  std::set<std::string> pipelines;
  std::set<std::pair<std::int64_t, bool>> tiles;  // rows of an item; by warpgroups
  expect_exact(
      {"h200", "a100", "mi300x", "rx7900xtx", "rx9070xt"}, {8, 16, 32, 64},
      [](auto rows, const Device&) { return testing::expert_types(rows, 72, 256); },
      [&](const char* name, const Problem& type, const Schedule& schedule) {
        pipelines.insert(name + std::to_string(schedule.index()));
        const auto* tile = std::get_if<TileSchedule>(&schedule);
        if (tile != nullptr) tiles.insert({type.m, tile->warpgroups});
      });
  EXPECT_GE(pipelines.size(), 7U);  // decode and tiles of both of NVIDIA's, waves
  for (const std::int64_t rows : {16, 32, 64}) {
    EXPECT_TRUE(tiles.contains({rows, false}) && tiles.contains({rows, true})) << rows;
  }
}

TEST(Experts, of_activations_of_8_bits_are_exact_in_every_pipeline) {
  std::set<std::string> kinds;
  expect_exact(
      {"h200", "l40s", "a100", "mi300x", "rx7900xtx", "rx9070xt"}, {8, 32, 64},
      [](auto rows, const Device& on) { return testing::expert_types_of_bytes(rows, 72, 256, on); },
      [&](const char* name, const Problem& type, const Schedule&) {
        kinds.insert(name + std::string(name_of(*type.rounded_x())));
      });
  EXPECT_EQ(kinds,
            (std::set<std::string>{"h200s8", "h200e4m3", "l40ss8", "l40se4m3", "a100s8", "mi300xs8",
                                   "mi300xe4m3", "rx7900xtxs8", "rx9070xts8", "rx9070xte4m3"}));
}

// Scales of tokens that are not those of the item's rows.
TEST(Experts, of_activations_of_8_bits_need_the_scales_of_their_rows) {
  const Device& on = device("h200");
  const auto data =
      ExpertCase::integers(testing::expert_types_of_bytes(32, 72, 256, on).front(), 1);
  const Decisions decisions = decide(data.problem, on);
  const Schedule schedule = best_schedule(decisions);
  Program program = lower(decisions, schedule);
  ASSERT_EQ(objection_to(program, schedule, data), "");
  ASSERT_EQ(std::erase_if(program.items->shifts,
                          [&](const Items::Shift& shift) {
                            return program.buffers[shift.buffer].name == "x_scales";
                          }),
            1U);
  EXPECT_NE(objection_to(program, schedule, data), "");
}

TEST(Experts, texts_shift_what_the_items_have) {
  Problem problem = testing::expert_types(8, 128, 256).front();
  problem.rows = RoutedRows{4, 1, 1 << 15};
  const auto text = compile(problem, device("h200")).source;
  EXPECT_NE(text.find("item = items + blockIdx.z * 3"), std::string::npos);
  EXPECT_NE(text.find("weight += (unsigned long long)item[0] * 8192"), std::string::npos);
  EXPECT_NE(text.find("x += (unsigned long long)item[1] * 256"), std::string::npos);
  EXPECT_NE(text.find("bias += bias != nullptr ? (unsigned long long)item[0] * "),
            std::string::npos);
}

/// Neighbouring blocks have the same rows of a weight and other items, all of them once.
TEST(Experts, of_many_rows_go_together) {
  const Device& on = device("h200");
  const auto data = ExpertCase::integers(testing::expert_types(64, 328, 256).front(), 1);
  const Decisions decisions = decide(data.problem, on);
  unsigned seen = 0;
  for (const Schedule& schedule : testing::expert_schedules(data.problem, on, false)) {
    Program program = lower(decisions, schedule);
    if (program.items->together == 1) continue;
    ++seen;
    EXPECT_EQ(program.items->together, 8);
    verify(program, on.shared_per_block_bytes);
    EXPECT_EQ(objection_to(program, schedule, data), "") << to_string(schedule);
    const auto text = target_of(on).emit(program);
    EXPECT_NE(text.find("number = blockIdx.z * 8 + blockIdx.y % 8;"), std::string::npos);
    program.items->together = 16;  // half of the rows
    EXPECT_NE(objection_to(program, schedule, data), "") << to_string(schedule);
    program.items->together = 7;
    EXPECT_THROW(verify(program, on.shared_per_block_bytes), InternalError);
  }
  EXPECT_GE(seen, 2U);
}

/// The table may be the preceding kernel's.
TEST(Experts, of_dependent_launches_wait_before_they_read_their_item) {
  Problem problem = testing::expert_types(8, 128, 256).front();
  problem.rows = RoutedRows{4, 1, 1 << 15};
  const auto text = compile(problem, device("h200"), true).source;
  const auto read = text.find("tokens = item[2]");
  ASSERT_NE(read, std::string::npos);
  EXPECT_LT(text.find("dependent_wait();", text.find("linear_u4(")), read);
}

TEST(Experts, have_no_dense_product) {
  Problem problem = testing::expert_types(256, 4096, 4096).front();
  problem.rows = RoutedRows{8, 1, 1 << 24};
  const Decisions decisions = decide(problem, device("h200"));
  std::size_t kept = 0;
  for (const Candidate& c : candidates(decisions, true)) {
    if (!c.dropped.empty()) continue;
    ++kept;
    EXPECT_FALSE(is_dense(c.schedule));
  }
  EXPECT_GT(kept, 10U);
}

TEST(Experts, that_lie_between_lines_are_refused) {
  Problem problem = testing::expert_types(8, 128, 256).front();
  problem.rows = RoutedRows{4, 1, 100};
  EXPECT_THROW(check(problem), InvalidArgument);
  problem.rows = RoutedRows{0, 1, 128};
  EXPECT_THROW(check(problem), InvalidArgument);
}

/// The verifier against items that begin where accesses are not aligned, or rows that are not
/// where views have them.
TEST(Experts, with_crooked_items_do_not_verify) {
  Problem problem = testing::expert_types(8, 128, 256).front();
  problem.rows = RoutedRows{4, 1, 1 << 15};
  const Device& on = device("h200");
  const Decisions decisions = decide(problem, on);
  const Program good = lower(decisions, best_schedule(decisions));
  for (std::size_t i = 0; i < good.items->shifts.size(); ++i) {
    Program bad = good;
    bad.items->shifts[i].elements += 1;
    EXPECT_THROW(verify(bad, on.shared_per_block_bytes), InternalError)
        << good.buffers[good.items->shifts[i].buffer].name;
  }
}

}  // namespace
}  // namespace ladder
