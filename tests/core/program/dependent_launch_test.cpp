// SPDX-License-Identifier: Apache-2.0
//
// Kernels that start before the preceding one has ended: the interpreter refuses what they read of
// it, or write, before their wait, for every kind of schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "codegen/cuda/emit.h"
#include "expr/constructors.h"
#include "integer_layer.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;
using testing::lowered_cases;
using ::testing::ThrowsMessage;

const Device& h200() { return device("h200"); }

/// Where the first statement of the top level is that `matches`; the number of statements if none.
template <class Matches>
std::size_t first(const Program& program, const Matches& matches) {
  const auto at = std::ranges::find_if(program.body, matches);
  return static_cast<std::size_t>(at - program.body.begin());
}

template <class Op>
bool is(const Statement& statement) {
  return std::holds_alternative<Op>(statement.op);
}

bool reads(const Program& program, const Statement& statement, const char* buffer) {
  const auto named = [&](ViewId view) {
    return program.buffers[program.views[view].buffer].name == buffer;
  };
  if (const auto* i = std::get_if<Load>(&statement.op)) return named(i->from);
  if (const auto* i = std::get_if<CopyOwn>(&statement.op)) return named(i->from);
  return false;
}

/// Exact with x and y of the preceding kernel and the next, and refused without the wait.
void expect_order(const Problem& problem, const DecodeSchedule& schedule, std::int64_t m) {
  const auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  const auto data = LinearCase::integers(problem, m);
  EXPECT_EQ(data.run(program, schedule), data.exact()) << to_string(schedule);

  // The next kernel may take all before this one to have ended.
  EXPECT_EQ(first(program, is<DependentLaunch>), first(program, is<DependentWait>) + 1)
      << to_string(schedule);
  EXPECT_EQ(std::ranges::count_if(program.body, is<DependentWait>), 1) << to_string(schedule);
  const auto asked = first(program, [&](const auto& s) { return reads(program, s, "weight"); });
  // A ring of two has one k-tile on its way, which comes with the activations.
  if (schedule.ring() == nullptr || schedule.ring()->stages != 2) {
    EXPECT_LT(asked, first(program, is<DependentWait>));
  }
  // Other loads the assembler moves behind the wait.
  if (schedule.ring() == nullptr) {
    EXPECT_EQ(std::get<Load>(program.body[asked].op).cache, Cache::now);
  }

  auto without = program;
  std::erase_if(without.body, is<DependentWait>);
  EXPECT_THAT([&] { data.run(without, schedule); },
              ThrowsMessage<InternalError>(HasSubstr("before the preceding kernel has ended")))
      << to_string(schedule);
}

// What tells the ways of lowering apart.
auto kind_of(const DecodeSchedule& s) {
  const auto* w = s.register_stages();
  const auto* copy = s.bulk_copy();
  return std::tuple(s.reduction, s.route, s.weights.index(), s.ring() ? s.ring()->stages : 0,
                    s.tiles_per_cta() > 1, s.reduction_buffers(), w && w->block_by_block,
                    s.activations.index(), copy ? copy->multicast : 0, copy && copy->by_k_tiles);
}

TEST(DependentLaunch, waits_before_x_in_every_kind_of_schedule) {
  std::set<decltype(kind_of(std::declval<DecodeSchedule>()))> kinds;
  for (auto [problem, schedule] : lowered_cases()) {
    schedule.dependent_launch = true, problem.set_bias(true);
    if (!objection(schedule, decide(problem, h200())).empty()) continue;
    if (!kinds.insert(kind_of(schedule)).second) continue;
    expect_order(problem, schedule, 3);
    problem.permuted_columns = schedule.bulk_copy() == nullptr;
    if (problem.permuted_columns) expect_order(problem, schedule, 8);
  }
  EXPECT_GE(kinds.size(), 30);
}

TEST(DependentLaunch, waits_before_x_in_what_the_scheduler_has) {
  std::set<decltype(kind_of(std::declval<DecodeSchedule>()))> kinds;
  for (const char* type : {"uint2,group=64,scale=float16", "uint4,group=128,scale=float16", "nf4",
                           "uint4,group=64,scale=float16,zero=integer"}) {
    for (std::int64_t m : {1, 8, 16}) {
      Problem problem = linear_of(ttype(type), 130, 1024, Scalar::f16, m);
      problem.set_bias(true);
      for (const Candidate& candidate : candidates(decide(problem, h200()), true)) {
        if (!candidate.dropped.empty()) break;
        const auto& schedule = std::get<DecodeSchedule>(candidate.schedule);
        if (kinds.insert(kind_of(schedule)).second) {
          expect_order(problem, schedule, m);
        }
      }
    }
  }
  EXPECT_GE(kinds.size(), 20);
}

TEST(DependentLaunch, reads_a_bias_that_was_just_written_only_after_the_wait) {
  Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 66, 256);
  problem.set_bias(true);
  const DecodeSchedule schedule{
      .tokens = 8, .warps_n = 1, .warps_k = 4, .blocks_per_warp = 1, .dependent_launch = true};
  auto program = lower(decide(problem, h200()), schedule);
  auto& end = std::get<Within>(program.body.back().op);
  const auto load =
      std::ranges::find_if(end.body, [&](const auto& s) { return reads(program, s, "bias"); });
  ASSERT_NE(load, end.body.end());
  const Statement early = *load;
  end.body.erase(load);
  program.body.insert(program.body.begin(), early);
  const auto data = LinearCase::integers(problem, 2);
  EXPECT_THAT(
      [&] { data.run(program, schedule); },
      ThrowsMessage<InternalError>(HasSubstr("reads bias before the preceding kernel has ended")));
}

// The compiler may move loads of the read-only path, and plain ones of a pointer that it believes
// to be the only one, before the wait.
TEST(DependentLaunch, text_loads_the_bias_where_it_stands) {
  for (std::int64_t n : {64, 65}) {
    Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, n, 256);
    problem.set_bias(true);
    DecodeSchedule schedule{
        .tokens = 8, .warps_n = 1, .warps_k = 4, .blocks_per_warp = 1, .dependent_launch = true};
    const auto dependent = cuda::emit(lower(decide(problem, h200()), schedule));
    schedule.dependent_launch = false;
    const auto alone = cuda::emit(lower(decide(problem, h200()), schedule));
    EXPECT_THAT(alone, HasSubstr("const u16* __restrict__ bias"));
    EXPECT_THAT(dependent, ::testing::Not(HasSubstr("const u16* __restrict__ bias")));
    const char* how = n % 2 == 0 ? "load_fresh((const Words1*)" : "load_element(from + ";
    const auto at = dependent.find("bias_of_rows = load bias");
    ASSERT_NE(at, std::string::npos);
    EXPECT_THAT(dependent.substr(at, dependent.find("{  // ", at) - at), HasSubstr(how));
  }
}

}  // namespace
}  // namespace ladder
