// SPDX-License-Identifier: Apache-2.0
//
// Activations that the copy engine brings, for one block or for the tiles of a cluster, and sums
// that threads without tokens pass over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "base/error.h"
#include "integer_layer.h"
#include "pipelines/decode/shared_memory.h"
#include "program/slips.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

const Device& h200() { return device("h200"); }

DecodeSchedule engine(int sharers, int tokens = 8, Reduction reduction = Reduction::none) {
  DecodeSchedule out{tokens, 1, 2, 1, 2, 1, reduction, Route::multiply_add, false, 1};
  out.units = 2, out.depth = 1, out.sharers = sharers;
  return out;
}

/// The same, in which the activations of each round are awaited by themselves.
DecodeSchedule by_rounds(int sharers, int rounds = 2, int depth = 2, int tokens = 8) {
  auto out = engine(sharers, tokens);
  out.rounds = out.x_rounds = rounds, out.depth = depth;
  return out;
}

const Problem kLayer = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, 256);

void expect_exact(const Problem& problem, const DecodeSchedule& schedule, std::int64_t m) {
  ASSERT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  const auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  EXPECT_EQ(shared_bytes(schedule, problem), program.shared_bytes()) << to_string(schedule);
  const auto data = LinearCase::integers(problem, m);
  EXPECT_EQ(data.run(program, schedule), data.exact()) << to_string(schedule) << "; m " << m;
}

/// What the interpreter says of a program that was changed.
std::string caught(const DecodeSchedule& schedule, const std::function<void(Program&)>& change) {
  auto program = lower(decide(kLayer, h200()), schedule);
  change(program);
  return testing::objection_to(program, schedule, LinearCase::integers(kLayer, 3));
}

template <class Op>
Op& find(std::vector<Statement>& body) {
  for (Statement& s : body) {
    if (auto* op = std::get_if<Op>(&s.op)) return *op;
  }
  fail<InternalError>("no such statement");
}

template <class Op>
void drop(std::vector<Statement>& body) {
  std::erase_if(body, [](const Statement& s) { return std::holds_alternative<Op>(s.op); });
}

// One token, some, all, more than warps; rows that end so that the last tile of a cluster has none.
TEST(CopyEngine, brings_the_rows_of_the_tokens_there_are) {
  for (int sharers : {1, 2, 4}) {
    for (std::int64_t m : {1, 3, 8}) expect_exact(kLayer, engine(sharers), m);
    Problem wide = kLayer, ragged = kLayer;
    wide.m = 16, wide.set_activation(Scalar::bf16), ragged.n = 130;
    for (std::int64_t m : {9, 16}) expect_exact(wide, engine(sharers, 16), m);
    expect_exact(ragged, engine(sharers), 2);
  }
}

TEST(CopyEngine, serves_every_reduction_route_and_sweep) {
  int served = 0;
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (auto route : {Route::multiply_add, Route::in_place}) {
      for (int sweeps : {1, 2, 3}) {
        for (int depth : {0, 1, 2}) {
          auto schedule = engine(1, 8, reduction);
          schedule.route = route, schedule.sweeps = sweeps, schedule.depth = depth;
          Problem problem = kLayer;
          problem.n = 192, problem.k = reduction == Reduction::none ? 256 : 512;
          // Sweeps are for a depth, and for sums that wait in shared memory: not for ordered ones.
          const bool objected = sweeps > 1 && (depth == 0 || reduction == Reduction::ordered);
          EXPECT_EQ(objection(schedule, decide(problem, h200())).empty(), !objected)
              << to_string(schedule);
          if (objected) continue;
          expect_exact(problem, schedule, 3);
          ++served;
        }
      }
    }
  }
  EXPECT_EQ(served, 34);
}

// More rounds than are written out, too: a loop awaits them.
TEST(CopyEngine, brings_the_activations_of_each_round_by_themselves) {
  for (int sharers : {1, 2, 4}) {
    for (auto [rounds, depth] : {std::array{2, 0}, {2, 1}, {2, 2}, {4, 2}, {12, 2}}) {
      for (bool dependent : {false, true}) {
        for (std::int64_t m : {1, 9, 16}) {
          auto schedule = by_rounds(sharers, rounds, depth, 16);
          schedule.dependent_launch = dependent;
          Problem problem = kLayer;
          problem.m = 16, problem.n = 130, problem.k = schedule.block_columns();
          expect_exact(problem, schedule, m);
        }
      }
    }
  }
  for (auto reduction : {Reduction::cluster, Reduction::ordered}) {
    auto schedule = by_rounds(1);
    schedule.reduction = reduction, schedule.route = Route::in_place;
    Problem problem = kLayer;
    problem.k = 512;
    expect_exact(problem, schedule, 3);
  }
}

TEST(CopyEngine, of_whose_rounds_none_may_be_mistaken) {
  const auto schedule = by_rounds(2);
  EXPECT_EQ(caught(schedule, [](Program&) {}), "");
  const auto each = [](Program& p, const auto& change) {
    int number = 0;
    for (Statement& s : p.body) {
      if (auto* copy = std::get_if<CopyRows>(&s.op)) change(*copy, number++);
    }
    ASSERT_EQ(number, 2);
  };
  const auto second = [&](const auto& change) {
    return caught(schedule, [&](Program& p) {
      each(p, [&](CopyRows& copy, int number) {
        if (number == 1) change(p, copy);
      });
    });
  };
  // On the signal of the first round: that has its arrival.
  EXPECT_THAT(second([](Program&, CopyRows& copy) { copy.index = 0; }),
              HasSubstr("was not awaited"));
  EXPECT_EQ(second([](Program&, CopyRows& copy) { copy.at = 0; }), "wrong numbers");
  EXPECT_THAT(second([](Program& p, CopyRows& copy) { p.views[copy.to].offset = 0; }),
              HasSubstr("overwrites"));
  EXPECT_EQ(caught(schedule,
                   [&](Program& p) {
                     each(p, [](CopyRows& copy, int number) { copy.index = 1 - number; });
                   })
                .substr(0, 5),
            "reads");
  // Each round awaits the first one's signal.
  EXPECT_THAT(caught(schedule,
                     [](Program& p) {
                       for (Statement& s : p.body) {
                         if (auto* wait = std::get_if<Await>(&s.op)) wait->index = 0;
                       }
                     }),
              HasSubstr("reads a copy that was not waited for"));
}

TEST(CopyEngine, brings_all_rounds_or_each_and_not_for_sweeps) {
  auto some = by_rounds(1, 4), sweeps = by_rounds(1), apart = by_rounds(1, 4);
  some.x_rounds = 2, sweeps.sweeps = 2, apart.x_slack = 1;
  Problem wide = kLayer;
  wide.k = 512;
  EXPECT_THAT(objection(some, decide(wide, h200())), HasSubstr("brings 2 of 4 rounds"));
  EXPECT_THAT(objection(sweeps, decide(kLayer, h200())),
              HasSubstr("brings 2 of 2 rounds, sweeps 2"));
  EXPECT_THAT(objection(apart, decide(wide, h200())), HasSubstr("brings 4 of 4 rounds"));
}

TEST(CopyEngine, comes_before_a_table_is_used) {
  Problem problem = kLayer;
  testing::set_element(problem, element("nf4")), problem.set_bias(true);
  auto schedule = engine(1), threads = engine(0);
  schedule.units = threads.units = 4;
  auto rounds = schedule;
  rounds.x_rounds = rounds.rounds;
  const auto data = LinearCase::integers(problem, 3);
  for (const DecodeSchedule& each : {schedule, rounds}) {
    EXPECT_EQ(data.run(lower(decide(problem, h200()), each), each),
              data.run(lower(decide(problem, h200()), threads), threads));
  }
}

TEST(CopyEngine, is_objected_to_where_rows_are_not_whole) {
  Problem ends = kLayer, gathered = kLayer, odd = kLayer;
  ends.k = 250, testing::set_group(ends, 0), gathered.permuted_columns = true, odd.k = 192;
  for (const Problem& problem : {ends, gathered, odd}) {
    EXPECT_THAT(objection(engine(1), decide(problem, h200())),
                HasSubstr("are not whole rows of 256"));
  }
  EXPECT_EQ(objection(engine(1), decide(kLayer, device("a100"))), "no copy engine");
  EXPECT_EQ(objection(engine(16), decide(kLayer, h200())), "a cluster of 16 tiles");
}

TEST(CopyEngine, of_which_no_step_may_be_left_out) {
  for (int sharers : {1, 2}) {
    const auto schedule = engine(sharers);
    EXPECT_EQ(caught(schedule, [](Program&) {}), "");
    EXPECT_THAT(caught(schedule, [](Program& p) { drop<SignalInit>(p.body); }),
                HasSubstr("before its signal_init"));
    EXPECT_THAT(caught(schedule, [](Program& p) { drop<Await>(p.body); }),
                HasSubstr("reads a copy that was not waited for"));
    EXPECT_THAT(caught(schedule, [](Program& p) { drop<CopyRows>(p.body); }),
                HasSubstr("waits forever"));
  }
  EXPECT_THAT(caught(engine(1),
                     [](Program& p) {
                       const auto first = std::ranges::find_if(p.body, [](const Statement& s) {
                         return std::holds_alternative<Barrier>(s.op);
                       });
                       p.body.erase(first);
                     }),
              HasSubstr("initialised without a barrier since"));
  EXPECT_THAT(caught(engine(2), [](Program& p) { drop<ClusterBarrier>(p.body); }),
              HasSubstr("without a barrier since"));
}

// Two peers that each copy half for both. Where each copies all for itself the numbers are right,
// too, for twice the traffic; a part that neither copies, or copies for peers that there are not,
// is noticed.
TEST(CopyEngine, must_copy_to_all_that_count_on_it) {
  EXPECT_THAT(caught(engine(2), [](Program& p) { find<CopyRows>(p.body).multicast = false; }), "");
  EXPECT_NE(
      caught(engine(2),
             [](Program& p) { find<CopyRows>(p.body).at = find<CopyRows>(p.body).at + Affine(8); }),
      "");
  EXPECT_THAT(caught(engine(1), [](Program& p) { find<CopyRows>(p.body).multicast = true; }),
              HasSubstr("no cluster"));
}

// Rows of tokens that the call has not hold anything: what came of them would be seen.
TEST(CopyEngine, leaves_other_rows_and_their_use_is_caught) {
  EXPECT_NE(caught(engine(1),
                   [](Program& p) {
                     const auto x = find<CopyRows>(p.body).to;
                     for (View& view : p.views) {
                       if (view.buffer == p.views[x].buffer && view.extents.size() == 3) {
                         view.extents[1] = 8;
                       }
                     }
                   }),
            "");
}

TEST(Within, what_threads_passed_over_is_not_theirs_to_use) {
  EXPECT_THAT(caught(engine(1),
                     [](Program& p) {
                       auto& part = std::get<Within>(p.body.back().op);
                       const Statement last = part.body.back();
                       part.body.pop_back();
                       p.body.push_back(last);
                     }),
              "");  // a store of nothing: threads without tokens have none to write
  EXPECT_THAT(caught(engine(1),
                     [](Program& p) {
                       auto& part = std::get<Within>(p.body.back().op);
                       const auto sum = part.tile;
                       p.body.push_back({Add{sum, sum}});
                     }),
              HasSubstr("before it is set"));
  EXPECT_THAT(
      caught(engine(1),
             [](Program& p) { std::get<Within>(p.body.back().op).body.push_back({Barrier{}}); }),
      HasSubstr("what all threads must take part in"));
}

}  // namespace
}  // namespace ladder
