// SPDX-License-Identifier: Apache-2.0
//
// Every wait and barrier that lowering and the passes write is needed: without it the verifier, the
// interpreter or the numbers object. slips_test.cpp has the slips of other kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "program/linear_case.h"
#include "program/passes.h"
#include "program/program_case.h"
#include "program/slips.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using namespace ladder::testing;  // NOLINT: the helpers of these tests

using Body = std::vector<Statement>;
constexpr int kTrips = 7;

bool orders(const Statement& s) {
  return std::holds_alternative<Wait>(s.op) || std::holds_alternative<Barrier>(s.op) ||
         std::holds_alternative<ClusterBarrier>(s.op) ||
         std::holds_alternative<DependentWait>(s.op) || std::holds_alternative<Await>(s.op) ||
         std::holds_alternative<Arrive>(s.op) || std::holds_alternative<SignalInit>(s.op) ||
         std::holds_alternative<Expect>(s.op);
}

/// Calls `visit` with the program less one ordering statement, for each, and with that statement.
void without_each(const Program& program,
                  const std::function<void(const Program&, const Statement&)>& visit) {
  Program changed = program;
  const std::function<void(Body&)> look = [&](Body& body) {
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (orders(body[i])) {
        const Statement dropped = body[i];
        body.erase(body.begin() + i);
        visit(changed, dropped);
        body.insert(body.begin() + i, dropped);
      }
      if (auto* loop = std::get_if<For>(&body[i].op)) look(loop->body);
      if (auto* branch = std::get_if<If>(&body[i].op)) look(branch->body);
      if (auto* part = std::get_if<Within>(&body[i].op)) look(part->body);
      if (auto* part = std::get_if<Produce>(&body[i].op)) look(part->body);
    }
  };
  look(changed.body);
}

TEST(Mutation, every_wait_and_barrier_of_lowered_programs_is_needed) {
  int dropped = 0;
  for (const auto& [problem, schedule] : lowered_cases()) {
    const auto data = LinearCase::integers(problem, 3);
    const auto program = lower(decide(problem, device("h200")), schedule);
    const auto right = data.run(program, schedule);  // interpret_test.cpp says so
    without_each(program, [&, &schedule = schedule](const Program& mutant, const Statement& s) {
      ++dropped;
      std::string why;
      try {
        why = data.run(mutant, schedule) == right ? "" : "wrong numbers";
      } catch (const InternalError& error) {
        why = error.what();
      }
      EXPECT_NE(why, "") << "without " << to_string(program, s) << "\n"
                         << to_string(schedule) << "\n"
                         << to_string(mutant);
    });
  }
  EXPECT_GT(dropped, 200);
}

std::string caught(Program program, const std::function<void(Program&)>& mutate) {
  mutate(program);
  return summed_objection(program, kTrips);
}

TEST(Mutation, every_wait_and_barrier_of_a_pipeline_is_needed) {
  for (bool bulk : {false, true}) {
    for (int stages : {1, 2, 3}) {
      const auto program = with_barriers(with_pipeline(summed(kTrips, bulk), stages));
      EXPECT_EQ(summed_objection(program, kTrips), "");
      int dropped = 0;
      without_each(program, [&](const Program& mutant, const Statement& s) {
        ++dropped;
        EXPECT_NE(summed_objection(mutant, kTrips), "")
            << "without " << to_string(program, s) << "\n"
            << to_string(mutant);
      });
      EXPECT_GE(dropped, 2);
    }
  }
}

TEST(Mutation, a_pipeline_that_waits_one_trip_too_late_is_caught) {
  for (int stages : {2, 3, 4}) {
    const auto program = with_barriers(with_pipeline(summed(kTrips, false), stages));
    EXPECT_THAT(caught(program,
                       [](Program& p) {
                         each_statement(p.body, [](Statement& s) {
                           if (auto* wait = std::get_if<Wait>(&s.op)) ++wait->pending;
                         });
                       }),
                HasSubstr("reads a copy that was not waited for"));
  }
}

TEST(Mutation, a_pipeline_with_the_wrong_phase_or_one_that_never_changes_is_caught) {
  for (int stages : {2, 3}) {
    const auto program = with_barriers(with_pipeline(summed(kTrips, true), stages));
    for (std::int64_t constant : {0, 1}) {
      EXPECT_NE(caught(program,
                       [&](Program& p) {
                         each_statement(p.body, [&](Statement& s) {
                           if (auto* await = std::get_if<Await>(&s.op)) await->parity = constant;
                         });
                       }),
                "");
    }
  }
}

TEST(Mutation, a_ring_of_one_part_too_few_is_caught) {
  for (bool bulk : {false, true}) {
    for (int stages : {2, 3}) {
      const auto program = with_barriers(with_pipeline(summed(kTrips, bulk), stages));
      EXPECT_NE(caught(program,
                       [&](Program& p) {
                         for (View& view : p.views) {
                           if (p.buffers[view.buffer].level != Level::shared) continue;
                           for (auto& term : view.offset.terms) term.modulus = stages - 1;
                           const auto part = p.buffers[view.buffer].elements / stages;
                           view.offset.constant %= part * (stages - 1);
                         }
                       }),
                "");
    }
  }
}

TEST(Mutation, a_copy_of_the_wrong_trip_is_caught_by_its_numbers) {
  const auto program = with_barriers(with_pipeline(summed(kTrips, false), 3));
  EXPECT_EQ(caught(program,
                   [](Program& p) {
                     each_statement(p.body, [](Statement& s) {
                       if (auto* copy = std::get_if<CopyAsync>(&s.op)) {
                         for (auto& term : copy->at[0].terms) --term.offset;
                       }
                     });
                   }),
            "wrong numbers");
}

TEST(Mutation, a_guard_that_stops_too_early_is_caught) {
  for (bool bulk : {false, true}) {
    const auto program = with_barriers(with_pipeline(summed(kTrips, bulk), 2));
    EXPECT_NE(caught(program,
                     [](Program& p) {
                       each_statement(p.body, [](Statement& s) {
                         if (auto* copy = std::get_if<CopyAsync>(&s.op)) --copy->below;
                         if (auto* copy = std::get_if<CopyBulk>(&s.op)) --copy->below;
                       });
                     }),
              "");
  }
}

// A field one bit off, a layout with two digits swapped, a pad forgotten on one side.
TEST(Mutation, slips_in_views_of_hand_written_programs_give_wrong_numbers) {
  const auto build = [](std::int64_t pad, bool swapped, int shift) {
    Builder p("codes", {.x = 1, .y = 1, .threads = 64});
    const auto w = p.input("w", Scalar::u32, {64, 4}), y = p.output("y", Scalar::f32, {32, 64});
    const auto staged = p.shared("staged", Scalar::f32, {64, 32}, {33, 1});
    const auto turned = p.view(staged, {32, 64}, {1, 33 - pad});
    auto words = p.load(w, {0, 0}, spatial({64, 1}) * local({1, 4}));
    if (shift != 0) words = p.binary(BinaryOp::shift_right, words, shift);
    const auto codes = p.view(words, ElementType::of("u4"), spatial({64, 1}) * local({1, 32}));
    p.store(p.cast(codes, Scalar::f32), staged, {0, 0});
    const Layout out = spatial({32, 2}) * local({1, 32}),
                 wrong = column_spatial({32, 2}) * local({1, 32});
    const auto tile = p.load(turned, {0, 0}, out);
    p.store(swapped ? p.view(tile, Scalar::f32, wrong) : tile, y, {0, 0});
    return with_barriers(p.finish());
  };
  const auto run = [](const Program& program) {
    std::vector<std::uint32_t> words;
    for (std::uint32_t i = 0; i < 256; ++i) words.push_back(i * 2654435761u);
    std::vector<Argument> memory{given(words), Argument::output(32 * 64 * 4)};
    if (auto why = objection_to(program, memory); !why.empty()) return why;
    const auto out = values_of<float>(memory[1]);
    for (int k = 0; k < 32; ++k) {
      for (int n = 0; n < 64; ++n) {
        const auto code = words[n * 4 + k / 8] >> 4 * (k % 8) & 15u;
        if (out[k * 64 + n] != static_cast<float>(code)) return std::string("wrong numbers");
      }
    }
    return std::string();
  };
  EXPECT_EQ(run(build(0, false, 0)), "");
  EXPECT_NE(run(build(1, false, 0)), "");
  EXPECT_EQ(run(build(0, true, 0)), "wrong numbers");
  EXPECT_EQ(run(build(0, false, 1)), "wrong numbers");
}

}  // namespace
}  // namespace ladder
