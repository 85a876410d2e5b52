// SPDX-License-Identifier: Apache-2.0
//
// Tails: the last tiles of a tile kernel, of which each has several blocks along K.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/cuda/emit.h"
#include "pipelines/linear/splits.h"
#include "pipelines/lower.h"
#include "program/linear_case.h"
#include "program/passes.h"
#include "program/slips.h"
#include "program/tail_cases.h"
#include "program/verify_slips.h"

namespace ladder {
namespace {

using testing::faults_of;
using testing::first;
using ::testing::HasSubstr;
using testing::LinearCase;

TEST(Tails, of_every_kind_of_type_are_exact) {
  unsigned seed = 0;
  for (const auto& [problem, schedule] : testing::tail_cases()) {
    SCOPED_TRACE(to_string(problem) + "; " + to_string(schedule));
    const Program program = lower(decide(problem, device("h200")), schedule);
    ASSERT_EQ(faults_of(program), "");
    EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem));
    for (const std::int64_t m : {problem.m, problem.m / 2 + 1}) {
      const auto data = LinearCase::integers(problem, m, ++seed);
      ASSERT_EQ(data.run(program, schedule), data.exact()) << m << " tokens";
    }
  }
}

TEST(Tails, have_a_block_for_each_split_behind_those_of_whole_tiles) {
  const auto [problem, schedule] = testing::tail_cases().front();
  const Program program = lower(decide(problem, device("h200")), schedule);
  const CtaGrid grid = grid_of(schedule, problem);
  const std::int64_t tiles = grid.tiles * grid.token_tiles;
  const std::array<std::int64_t, 2> wanted = {
      1, tiles + schedule.tail_tiles * (schedule.tail_splits - 1)};
  EXPECT_EQ(program.grid(), wanted);
  const Workspace workspace = workspace_of(problem, schedule);
  EXPECT_EQ(workspace.counters, schedule.tail_tiles);
  EXPECT_EQ(workspace.floats,
            schedule.tail_tiles * schedule.tail_splits * schedule.rows * schedule.tokens);
  EXPECT_THAT(cuda::emit(program),
              HasSubstr("is_tail = block >= " + std::to_string(tiles - schedule.tail_tiles)));
}

TEST(Tails, are_verified) {
  const auto [problem, schedule] = testing::tail_cases().front();
  const Program right = lower(decide(problem, device("h200")), schedule);
  const auto fault = [&](auto change) {
    Program p = right;
    change(p);
    return faults_of(p);
  };
  EXPECT_THAT(fault([](Program& p) { p.variables[kSplit].extent = 1; }),
              HasSubstr("a tail of 1 blocks"));
  EXPECT_THAT(fault([](Program& p) { p.tail->first = p.variables[kTile].extent; }),
              HasSubstr("a tail of 2 blocks for each tile from"));
  EXPECT_THAT(fault([](Program& p) { p.tail->is_tail = kSplit; }), HasSubstr("no variables say"));
  EXPECT_THAT(fault([](Program& p) { p.cluster = 2; }), HasSubstr("a tail of clusters"));
  EXPECT_THAT(fault([](Program& p) { p.tail.reset(); }), HasSubstr("of a tail that is not"));
  EXPECT_THAT(fault([](Program& p) { first<For>(p.body)->tail_trips = 100; }),
              HasSubstr("100 trips in the tail"));
  EXPECT_THAT(fault([](Program& p) { first<Ticket>(p.body)->expected += 1; }),
              HasSubstr("3 blocks and a variable of 2"));
}

// Either kind of block for itself: the trips of one are not those of the other.
TEST(Tails, have_no_hazards_and_every_barrier_is_needed) {
  for (const auto& [problem, schedule] : testing::tail_cases()) {
    SCOPED_TRACE(to_string(problem) + "; " + to_string(schedule));
    const Program program = lower(decide(problem, device("h200")), schedule);
    EXPECT_EQ(to_string(with_barriers(program)), to_string(program));
  }
}

TEST(Tails, slips_are_found) {
  const auto [problem, schedule] = testing::tail_cases().front();
  const Program right = lower(decide(problem, device("h200")), schedule);
  const auto data = LinearCase::integers(problem, problem.m, 7);
  const auto found = [&](auto change) {
    Program p = right;
    change(p);
    try {
      return data.run(p, schedule) != data.exact();
    } catch (const InternalError&) {
      return true;
    }
  };
  EXPECT_FALSE(found([](Program&) {}));
  EXPECT_TRUE(found([](Program& p) { first<For>(p.body)->tail_trips += 1; }));
  EXPECT_TRUE(found([](Program& p) { first<For>(p.body)->tail_trips -= 1; }));
  EXPECT_TRUE(found([](Program& p) { first<For>(p.body)->tail_trips = 0; }));
  EXPECT_TRUE(found([](Program& p) { p.tail->first -= 1; }));
  EXPECT_TRUE(found([](Program& p) {  // who comes first writes y, too
    first<Ticket>(p.body)->expected = 1;
  }));
}

TEST(Tails, are_split_where_a_device_would_be_empty_in_part) {
  EXPECT_TRUE(tails_of(132, 64, 132, 16, 2).empty());
  EXPECT_TRUE(tails_of(100, 64, 132, 16, 2).empty());  // splits of all
  EXPECT_TRUE(tails_of(263, 64, 132, 16, 2).empty());  // 131 left: nearly all busy
  const auto found = tails_of(448, 64, 132, 16, 2);
  ASSERT_EQ(found.size(), 2U);
  for (const auto& [tiles, splits] : found) {
    EXPECT_EQ(tiles, 52);
    EXPECT_GT(splits, 1);
  }
}

TEST(Tails, objections_have_names) {
  auto [problem, s] = testing::tail_cases().front();
  const Decisions decisions = decide(problem, device("h200"));
  const auto why = [&](auto change) {
    TileSchedule other = s;
    change(other);
    return objection(other, decisions);
  };
  EXPECT_EQ(why([](TileSchedule&) {}), "");
  EXPECT_THAT(why([](TileSchedule& t) { t.producers = false; }), HasSubstr("without producers"));
  EXPECT_THAT(why([](TileSchedule& t) { t.tail_tiles = 4; }), HasSubstr("a tail of 4 tiles, of 4"));
  EXPECT_THAT(why([](TileSchedule& t) { t.tail_splits = 4; }),
              HasSubstr("5 k-tiles are not 4 splits"));
  EXPECT_THAT(why([](TileSchedule& t) { t.tail_tiles = 0; }), HasSubstr("no tail of 2 splits"));
  const auto read = tile_schedule_of(to_string(s));
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, s);
}

}  // namespace
}  // namespace ladder
