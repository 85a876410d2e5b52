// SPDX-License-Identifier: Apache-2.0
//
// Slips in kernels whose waves alternate, each found by the verifier, and by the interpreter
// without it where numbers depend on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "program/alternate_cases.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;

class AlternatingSlip : public ::testing::Test {
 protected:
  void SetUp() override {
    cases_ = testing::alternate_case(testing::kAlternatingShapes[0],
                                     ttype("uint4,group=64,scale=float16"), Scalar::f16,
                                     Reduction::ordered, Route::multiply_add, mi300x_, 4);
    ASSERT_EQ(cases_.size(), 1U);
  }
  Program program() const {
    const auto& [problem, schedule] = cases_.front();
    return lower(decide(problem, mi300x_), schedule);
  }
  /// What the verifier says, and what the interpreter does without it.
  static std::string verified(const Program& program) {
    try {
      verify(program, mi300x_.shared_per_block_bytes);
      return "";
    } catch (const InternalError& error) {
      return error.what();
    }
  }
  std::string interpreted(const Program& program) const {
    const auto& [problem, schedule] = cases_.front();
    const auto data = testing::LinearCase::integers(problem, problem.m);
    try {
      return data.run(program, schedule) == data.exact() ? "" : "wrong numbers";
    } catch (const InternalError& error) {
      return error.what();
    }
  }
  /// Calls change(body, index) for each statement of the halves of which `such` holds.
  template <class Such, class Change>
  static void each(std::vector<Statement>& body, const Such& such, const Change& change) {
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (auto* loop = std::get_if<For>(&body[i].op)) each(loop->body, such, change);
      if (such(body[i])) change(body, i);
    }
  }
  static std::vector<Statement>& halves(Program& program) {
    const auto found = std::ranges::find_if(
        program.body, [](const Statement& s) { return std::holds_alternative<Alternate>(s.op); });
    return std::get<Alternate>(found->op).body;
  }

  static inline const Device& mi300x_ = device("mi300x");
  std::vector<std::pair<Problem, WaveSchedule>> cases_;
};

// The first half's, the second half's, and two of each step, once in the loop and once behind it.
TEST_F(AlternatingSlip, a_dropped_barrier_is_caught) {
  const auto is_barrier = [](const Statement& s) { return std::holds_alternative<Barrier>(s.op); };
  std::size_t count = 0;
  auto whole = program();
  each(halves(whole), is_barrier, [&](auto&, std::size_t) { ++count; });
  EXPECT_EQ(count, 2U + 8 + 7);
  unsigned by_interpreter = 0;
  for (std::size_t which = 0; which < count; ++which) {
    auto slipped = program();
    std::size_t at = 0;
    each(halves(slipped), is_barrier, [&](auto& body, std::size_t i) {
      if (at++ == which) body[i].op = Priority{false};  // which it is already
    });
    EXPECT_NE(verified(slipped), "") << "barrier " << which;
    by_interpreter += interpreted(slipped).empty() ? 0 : 1;
  }
  // Both halves' own, and in the loop those of steps in front of which activations are written, or
  // behind which they are read. Others keep halves apart, and order nothing.
  EXPECT_GE(by_interpreter, 6U);
}

TEST_F(AlternatingSlip, halves_that_keep_step_are_caught) {
  auto slipped = program();
  auto& body = halves(slipped);
  body.erase(body.begin()), body.pop_back();
  EXPECT_THAT(verified(slipped), HasSubstr("both halves multiply behind barrier 1"));
}

TEST_F(AlternatingSlip, a_product_without_priority_or_a_phase_that_keeps_it_is_caught) {
  for (const bool raised : {true, false}) {
    auto slipped = program();
    each(
        halves(slipped), [](const Statement& s) { return std::holds_alternative<Priority>(s.op); },
        [&](auto& body, std::size_t i) { std::get<Priority>(body[i].op).raised = !raised; });
    EXPECT_THAT(verified(slipped),
                HasSubstr(raised ? "a product without priority" : "a phase ends with priority"));
  }
}

// Stores of both parts of the columns, in a phase where others still read what was there, or will
// have read it.
TEST_F(AlternatingSlip, activations_that_are_written_a_phase_too_early_or_late_are_caught) {
  const auto store_at = [](std::vector<Statement>& body, int from, int to) {
    std::vector<std::size_t> barriers;
    std::size_t store = 0, stores = 0;
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (std::holds_alternative<Barrier>(body[i].op)) barriers.push_back(i);
      if (std::holds_alternative<Store>(body[i].op) && stores++ == static_cast<std::size_t>(from)) {
        store = i;
      }
    }
    EXPECT_EQ(stores, 2U);
    const Statement moved = body[store];
    const auto at = barriers[static_cast<std::size_t>(to)];  // in front of that barrier
    body.erase(body.begin() + static_cast<std::ptrdiff_t>(store));
    body.insert(body.begin() + static_cast<std::ptrdiff_t>(at - (store < at ? 1 : 0)), moved);
  };
  // Of steps 0 to 3, each of two barriers. The first store is of the second part, which is read
  // from step 2 on; the other of the first part of the next k-tile, whose step 0 comes behind
  // step 3.
  const struct {
    int store, barrier;
    bool right;
  } moves[] = {{0, 0, true}, {0, 4, false}, {1, 4, true}, {1, 2, false}};
  for (const auto& [store, barrier, right] : moves) {
    auto slipped = program();
    for (Statement& s : halves(slipped)) {
      if (auto* loop = std::get_if<For>(&s.op)) store_at(loop->body, store, barrier);
    }
    EXPECT_EQ(verified(slipped).empty(), right) << store << ", " << barrier;
    EXPECT_EQ(interpreted(slipped).empty(), right) << store << ", " << barrier;
  }
}

// The place of one part for both.
TEST_F(AlternatingSlip, half_of_the_stage_is_caught) {
  auto slipped = program();
  for (View& view : slipped.views) {
    if (slipped.buffers[view.buffer].name == "x_tile") view.offset = 0;
  }
  EXPECT_NE(verified(slipped), "");
  EXPECT_NE(interpreted(slipped), "");
}

}  // namespace
}  // namespace ladder
