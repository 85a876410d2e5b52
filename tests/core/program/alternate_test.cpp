// SPDX-License-Identifier: Apache-2.0
//
// Halves of a block that alternate, in programs written by hand: barriers are counted.
#include "program/alternate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cuda/emit.h"
#include "program/passes.h"
#include "program/program_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using namespace ladder::testing;  // NOLINT: the helpers of these tests

constexpr std::int64_t kTrips = 5, kOfBlock = 128;  // threads: two waves

/// y[i] is the sum of what the thread of the other half that has its lane brings in each trip, by
/// one buffer or several in turn. It is read `between` barriers after it is written, and a trip
/// ends with `behind` barriers more.
Program exchanged(int buffers, int between, int behind, bool apart = true) {
  Builder p("exchanged", {.x = 1, .y = 1, .threads = kOfBlock});
  const auto x = p.input("x", Scalar::f32, {kTrips, 2, 64}),
             y = p.output("y", Scalar::f32, {1, 2, 64});
  const auto staged = p.shared("staged", Scalar::f32, {buffers, 2, 64});
  const auto others = p.view(staged, {buffers, 2, 64}, {kOfBlock, -64, 1}, 64);
  const Layout layout = spatial({1, 2, 64});
  const auto sum = p.fill(Scalar::f32, layout, 0, "sum");
  p.loop("i", kTrips, [&](const Affine& i) {
    p.store(p.load(x, {i, 0, 0}, layout), staged, {remainder(i, buffers), 0, 0});
    for (int n = 0; n < between; ++n) p.barrier();
    p.update(BinaryOp::add, sum, p.load(others, {remainder(i, buffers), 0, 0}, layout));
    for (int n = 0; n < behind; ++n) p.barrier();
  });
  p.store(sum, y, {0, 0, 0});
  Program program = p.finish();
  if (!apart) return program;
  Statement& loop = program.body[1];
  loop.op = Alternate{{{Barrier{Half::second}}, loop, {Barrier{Half::first}}}};
  return program;
}

/// What the interpreter alone says, and whether the numbers are right.
std::string interpreted(const Program& program) {
  std::vector<Argument> memory{given(counting(kTrips * kOfBlock)), Argument::output(4 * kOfBlock)};
  try {
    interpret(program, memory, 1);
  } catch (const InternalError& error) {
    return error.what();
  }
  const auto y = values_of<float>(memory[1]);
  for (int t = 0; t < kOfBlock; ++t) {
    const float one = static_cast<float>((t + 64) % kOfBlock);
    if (y[t] != kTrips * (one + kOfBlock * (kTrips - 1) / 2)) return "wrong numbers";
  }
  return "";
}

std::string verified(const Program& program) {
  try {
    verify(program, kMaxShared);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

/// The first of the halves of exchanged(), as a list of statements.
std::vector<Statement>& halves_of(Program& program) {
  return std::get<Alternate>(program.body[1].op).body;
}

// One barrier orders a block. Halves that are a phase apart need two from a write to a read, and
// from a read to what overwrites it.
TEST(Halves, need_one_barrier_more_than_a_block_that_keeps_step) {
  const struct {
    int buffers, between, behind;
    bool apart;
    const char* why;
  } cases[] = {{2, 1, 0, false, ""},
               {2, 2, 0, true, ""},
               {2, 1, 0, true, "wrote, without a barrier"},
               {2, 1, 3, true, "wrote, without a barrier"},
               {1, 1, 1, false, ""},
               {1, 2, 2, true, ""},
               {1, 2, 1, true, "read, without a barrier"}};
  for (const auto& [buffers, between, behind, apart, why] : cases) {
    const auto program = exchanged(buffers, between, behind, apart);
    const bool right = std::string_view(why).empty();
    EXPECT_THAT(interpreted(program), HasSubstr(why)) << to_string(program);
    EXPECT_EQ(interpreted(program).empty(), right) << to_string(program);
    EXPECT_THAT(verified(program),
                HasSubstr(right ? "" : "no barrier parts it from another thread's access"));
    EXPECT_EQ(verified(program).empty(), right) << to_string(program);
  }
}

TEST(Halves, meet_by_number_whichever_statement_it_is) {
  Program program = exchanged(2, 2, 0);
  EXPECT_EQ(phases_of({halves_of(program)}, Half::first).size(), 2 * kTrips + 2);
  EXPECT_EQ(phases_of({halves_of(program)}, Half::second).size(), 2 * kTrips + 2);
  EXPECT_TRUE(phases_of({halves_of(program)}, Half::second).front().empty());
  // Either half may be behind.
  std::swap(halves_of(program).front(), halves_of(program).back());
  EXPECT_EQ(interpreted(program), "");
  EXPECT_EQ(verified(program), "");
}

TEST(Halves, that_meet_another_number_of_barriers_are_caught) {
  for (const bool front : {true, false}) {
    Program program = exchanged(2, 2, 0);
    auto& body = halves_of(program);
    body.erase(front ? body.begin() : body.end() - 1);
    const char* const why = front ? "the first half meets 11 barriers, the second 10"
                                  : "the first half meets 10 barriers, the second 11";
    EXPECT_THAT(verified(program), HasSubstr(why));
    EXPECT_THAT(interpreted(program), HasSubstr(front ? "meets 11 barriers, the second 10"
                                                      : "meets 10 barriers, the second 11"));
  }
}

TEST(Halves, are_nowhere_but_in_what_alternates) {
  Program program = exchanged(2, 1, 0, false);
  program.body.insert(program.body.begin() + 1, {Barrier{Half::first}});
  EXPECT_THAT(verified(program), HasSubstr("no halves that alternate, in: barrier of the first"));
  EXPECT_THAT(interpreted(program), HasSubstr("half of the threads meet nobody"));
  program.body[1].op = Priority{true};
  EXPECT_THAT(verified(program), HasSubstr("no halves that alternate, in: priority"));
}

TEST(Halves, do_alone_what_needs_no_others) {
  const auto with = [](auto op) {
    Program program = exchanged(2, 2, 0);
    auto& body = halves_of(program);
    body.insert(body.begin() + 1, {std::move(op)});
    return verified(program);
  };
  EXPECT_THAT(with(Ticket{kTile, 0, {0}, 1}), HasSubstr("what a half does not do alone: "));
  EXPECT_THAT(with(Alternate{}), HasSubstr("what a half does not do alone: alternate"));
  EXPECT_THAT(with(Wait{0}), HasSubstr("what a half does not do alone: wait"));
  EXPECT_THAT(with(If{kTile, 0, {}}), HasSubstr("what a half does not do alone: if"));
  EXPECT_THAT(with(Priority{true}), HasSubstr("a phase ends with priority"));
  Program program = exchanged(2, 2, 0);
  halves_of(program).push_back(program.body.back());
  EXPECT_THAT(verified(program), HasSubstr("what a half does not do alone: store y"));
}

TEST(Halves, are_of_whole_waves) {
  Program program = exchanged(2, 2, 0);
  program.threads = 64;
  EXPECT_THAT(verified(program), HasSubstr("64 threads are no two halves of whole waves"));
}

TEST(Halves, have_their_barriers_by_hand_and_no_text_of_cuda) {
  EXPECT_THAT([] { with_barriers(exchanged(2, 2, 0)); },
              ThrowsMessage<Unsupported>(
                  HasSubstr("barriers of halves that alternate are placed by hand")));
  EXPECT_THAT([] { cuda::emit(exchanged(2, 2, 0)); },
              ThrowsMessage<Unsupported>(HasSubstr("no halves that alternate")));
}

TEST(Halves, are_printed_with_what_each_has_alone) {
  EXPECT_THAT(to_string(exchanged(2, 2, 0)), HasSubstr("alternate\n"
                                                       "  barrier of the second half\n"
                                                       "  for i in 0..4 rolled\n"));
}

}  // namespace
}  // namespace ladder
