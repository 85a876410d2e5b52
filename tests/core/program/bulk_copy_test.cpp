// SPDX-License-Identifier: Apache-2.0
//
// What the copy engine and its signals do, and every way to use them wrongly.
#include "program/bulk_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/program_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using namespace ladder::testing;  // NOLINT: the helpers of these tests

std::string run(const Program& program) {
  std::vector<Argument> memory{given(counting(kRounds * 256)), Argument::output(1024)};
  if (auto why = objection_to(program, memory); !why.empty()) return why;
  const auto out = values_of<float>(memory[1]);
  for (int i = 0; i < 256; ++i) {
    if (out[i] != 5 * i + 256 * 10) return "wrong numbers";
  }
  return "";
}

std::vector<Statement>& loop_of(Program& program) {
  return std::get<For>(program.body[program.body.size() - 2].op).body;
}

template <class Op>
void drop(std::vector<Statement>& body, int index = 0) {
  for (auto at = body.begin(); at != body.end(); ++at) {
    if (std::holds_alternative<Op>(at->op) && index-- == 0) {
      body.erase(at);
      return;
    }
  }
  FAIL() << "nothing to drop";
}

template <class Op>
Op& find(std::vector<Statement>& body, int index = 0) {
  for (auto& statement : body) {
    if (auto* i = std::get_if<Op>(&statement.op); i != nullptr && index-- == 0) return *i;
  }
  fail<InternalError>("nothing to find");
}

template <class Change>
std::string caught(const Change& change) {
  auto program = bulk_ring();
  change(program);
  return run(program);
}

TEST(BulkCopy, a_ring_of_phases_sums_its_rounds) { EXPECT_EQ(run(bulk_ring()), ""); }

TEST(BulkCopy, prints_signals_and_phases) {
  const auto text = to_string(bulk_ring());
  EXPECT_THAT(text, HasSubstr("signal_init full[2] of 1 arrivals\n"));
  EXPECT_THAT(text, HasSubstr("  await full[k%2] parity k/2%2\n"));
  EXPECT_THAT(text, HasSubstr("  expect full[(k + 2)%2], 1024 bytes while k + 2 < 5\n"));
  EXPECT_THAT(text, HasSubstr("copy_bulk stages{(k + 2)%2*256} = x[k + 2, 0] on full[(k + 2)%2]"));
}

TEST(BulkCopy, data_that_was_not_awaited_is_not_there) {
  EXPECT_THAT(caught([](Program& p) { drop<Await>(loop_of(p)); }),
              HasSubstr("reads a copy that was not waited for, in: t"));
}

TEST(BulkCopy, the_wrong_phase_is_no_wait) {
  EXPECT_THAT(caught([](Program& p) { find<Await>(loop_of(p)).parity = 1; }),
              HasSubstr("reads a copy that was not waited for"));
  EXPECT_THAT(caught([](Program& p) { find<Await>(loop_of(p)).parity = 0; }),
              HasSubstr("reads a copy that was not waited for"));
}

TEST(BulkCopy, a_phase_that_expects_too_little_or_nothing_is_caught) {
  EXPECT_THAT(caught([](Program& p) { drop<Expect>(p.body); }),
              HasSubstr("copies more than the 0 bytes that the phase expects, in: copy_bulk"));
  EXPECT_THAT(caught([](Program& p) { find<Expect>(p.body).bytes = 512; }),
              HasSubstr("copies more than the 512 bytes"));
  EXPECT_THAT(caught([](Program& p) { find<Expect>(p.body).bytes = 2048; }),
              HasSubstr("waits forever: 1 of 1 arrivals, 1024 of 2048 bytes"));
}

TEST(BulkCopy, a_missing_copy_or_arrival_is_waited_for_forever) {
  EXPECT_THAT(caught([](Program& p) { drop<CopyBulk>(p.body); }), HasSubstr("waits forever"));
  EXPECT_THAT(caught([](Program& p) { drop<Arrive>(loop_of(p)); }),
              HasSubstr("waits forever: 0 of 64 arrivals"));
}

TEST(BulkCopy, a_buffer_that_threads_still_read_is_not_overwritten) {
  EXPECT_THAT(caught([](Program& p) { drop<Await>(loop_of(p), 1); }),
              HasSubstr("overwrites what another thread read, without a barrier, in: copy_bulk"));
}

TEST(BulkCopy, one_stage_too_few_is_caught) {
  EXPECT_THAT(caught([](Program& p) {
                for (auto& view : p.views) {
                  for (auto& term : view.offset.terms) term.factor = 0;
                  if (view.offset == Affine(256)) view.offset = 0;
                }
              }),
              HasSubstr("overwrites a copy in flight"));
}

TEST(BulkCopy, a_phase_is_awaited_before_the_next_begins) {
  EXPECT_THAT(caught([](Program& p) {
                for (auto* body : {&p.body, &loop_of(p)}) {
                  for (auto& statement : *body) {
                    if (auto* i = std::get_if<Expect>(&statement.op)) i->index = 0;
                  }
                }
              }),
              HasSubstr("arrives at a phase that has its 1 arrivals and was not awaited"));
}

TEST(BulkCopy, signals_are_initialised_before_a_barrier) {
  EXPECT_THAT(caught([](Program& p) { drop<SignalInit>(p.body); }),
              HasSubstr("uses a signal before its signal_init, in: expect"));
  EXPECT_THAT(caught([](Program& p) { drop<Barrier>(p.body); }),
              HasSubstr("uses a signal that was initialised without a barrier since"));
}

TEST(BulkCopy, the_end_of_a_block_waits_for_its_copies) {
  EXPECT_THAT(caught([](Program& p) {
                auto& copy = find<CopyBulk>(loop_of(p));
                find<Expect>(loop_of(p)).below = copy.below = kRounds + 1;
                copy.at[0] = 0;
              }),
              HasSubstr("a block ends with copies in flight"));
}

TEST(BulkCopy, the_verifier_knows_what_the_engine_copies) {
  EXPECT_THAT(caught([](Program& p) { find<CopyBulk>(p.body).at[1] = 2; }),
              HasSubstr("rows that are not whole pieces of 16 bytes"));
  EXPECT_THAT(caught([](Program& p) { find<CopyBulk>(p.body).at[0] = 5; }),
              HasSubstr("dimension 0 reaches 6 of 5"));
  EXPECT_THAT(caught([](Program& p) { p.views[0].extents[0] = kTokens; }),
              HasSubstr("an extent that the call decides"));
  EXPECT_THAT(caught([](Program& p) { find<Await>(loop_of(p)).parity = 2; }),
              HasSubstr("parity 2"));
  EXPECT_THAT(caught([](Program& p) { find<Await>(loop_of(p)).index = 2; }),
              HasSubstr("mbarrier 2 of 2 of full"));
  EXPECT_THAT(caught([](Program& p) { p.signals[0].arrivals = 3; }),
              HasSubstr("3 arrivals, not 1, 64 or 65"));
}

TEST(BulkCopy, what_threads_wrote_is_not_overwritten_by_the_engine) {
  Builder p("mixed", {.x = 1, .y = 1, .threads = 32});
  const auto x = p.input("x", Scalar::f32, {32});
  const auto tile = p.shared("stage", Scalar::f32, {32});
  const auto full = p.signal("full", 1);
  p.signal_init(full);
  p.store(p.load(x, {0}, spatial({32})), tile, {0});
  p.barrier();
  p.expect(full, 0, 128);
  p.copy_bulk(tile, x, {0}, full, 0);
  p.await(full, 0, 0);
  std::vector<Argument> memory{given(counting(32))};
  EXPECT_THAT(objection_to(p.finish(), memory),
              HasSubstr("overwrites what threads wrote, by a bulk copy, in: copy_bulk"));
}

}  // namespace
}  // namespace ladder
