// SPDX-License-Identifier: Apache-2.0
//
// Activations that the copy engine brings, for one CTA or for the tiles of a cluster, and sums
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

DecodeSchedule bulk_copy(int multicast, int tokens = 8, Reduction reduction = Reduction::none) {
  return {.tokens = tokens,
          .warps_n = 1,
          .warps_k = 2,
          .blocks_per_warp = 1,
          .m16_tiles = 2,
          .weights = weights::RegisterStages{.k_tiles = 2, .stages = 1},
          .activations = activations::BulkCopy{.multicast = multicast},
          .reduction = reduction};
}

/// The same, in which the activations of each k-tile are awaited by themselves.
DecodeSchedule by_k_tiles(int multicast,
                          const Weights& weights = weights::RegisterStages{.k_tiles = 2,
                                                                           .stages = 2},
                          int tokens = 8) {
  auto out = bulk_copy(multicast, tokens);
  out.weights = weights;
  out.activations = activations::BulkCopy{.multicast = multicast, .by_k_tiles = true};
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
TEST(BulkActivations, brings_the_rows_of_the_tokens_there_are) {
  for (int multicast : {1, 2, 4}) {
    for (std::int64_t m : {1, 3, 8}) expect_exact(kLayer, bulk_copy(multicast), m);
    Problem wide = kLayer, ragged = kLayer;
    wide.m = 16, wide.set_activation(Scalar::bf16), ragged.n = 130;
    for (std::int64_t m : {9, 16}) expect_exact(wide, bulk_copy(multicast, 16), m);
    expect_exact(ragged, bulk_copy(multicast), 2);
  }
}

TEST(BulkActivations, serves_every_reduction_route_and_way_of_weights) {
  std::vector<Weights> ways = {weights::DoubleBuffered{.k_tiles = 2}};
  for (int tiles : {1, 2, 3}) {
    for (int stages : {1, 2}) {
      ways.emplace_back(
          weights::RegisterStages{.k_tiles = 2, .stages = stages, .tiles_per_cta = tiles});
    }
  }
  int served = 0;
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (auto route : {Route::multiply_add, Route::in_place}) {
      for (const Weights& weights : ways) {
        auto schedule = bulk_copy(1, 8, reduction);
        schedule.route = route, schedule.weights = weights;
        Problem problem = kLayer;
        problem.n = 192, problem.k = reduction == Reduction::none ? 256 : 512;
        // Several tiles per CTA are for sums that wait in shared memory: not for ordered ones.
        const bool objected = schedule.tiles_per_cta() > 1 && reduction == Reduction::ordered;
        EXPECT_EQ(objection(schedule, decide(problem, h200())).empty(), !objected)
            << to_string(schedule);
        if (objected) continue;
        expect_exact(problem, schedule, 3);
        ++served;
      }
    }
  }
  EXPECT_EQ(served, 34);
}

// More k-tiles than are written out, too: a loop awaits them.
TEST(BulkActivations, brings_the_activations_of_each_k_tile_by_themselves) {
  const Weights ways[] = {weights::DoubleBuffered{.k_tiles = 2},
                          weights::RegisterStages{.k_tiles = 2, .stages = 1},
                          weights::RegisterStages{.k_tiles = 2, .stages = 2},
                          weights::RegisterStages{.k_tiles = 4, .stages = 2},
                          weights::RegisterStages{.k_tiles = 12, .stages = 2}};
  for (int multicast : {1, 2, 4}) {
    for (const Weights& weights : ways) {
      for (bool dependent : {false, true}) {
        for (std::int64_t m : {1, 9, 16}) {
          auto schedule = by_k_tiles(multicast, weights, 16);
          schedule.dependent_launch = dependent;
          Problem problem = kLayer;
          problem.m = 16, problem.n = 130, problem.k = schedule.cta_columns();
          expect_exact(problem, schedule, m);
        }
      }
    }
  }
  for (auto reduction : {Reduction::cluster, Reduction::ordered}) {
    auto schedule = by_k_tiles(1);
    schedule.reduction = reduction, schedule.route = Route::in_place;
    Problem problem = kLayer;
    problem.k = 512;
    expect_exact(problem, schedule, 3);
  }
}

TEST(BulkActivations, of_whose_k_tiles_none_may_be_mistaken) {
  const auto schedule = by_k_tiles(2);
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
  // On the signal of the first k-tile: that has its arrival.
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
  // Each k-tile awaits the first one's signal.
  EXPECT_THAT(caught(schedule,
                     [](Program& p) {
                       for (Statement& s : p.body) {
                         if (auto* wait = std::get_if<Await>(&s.op)) wait->index = 0;
                       }
                     }),
              HasSubstr("reads a copy that was not waited for"));
}

TEST(BulkActivations, by_k_tiles_is_for_several_of_one_tile_of_rows) {
  const auto one = by_k_tiles(1, weights::RegisterStages{.k_tiles = 1, .stages = 1});
  const auto tiles =
      by_k_tiles(1, weights::RegisterStages{.k_tiles = 2, .stages = 2, .tiles_per_cta = 2});
  Problem of_one = kLayer;
  of_one.k = one.cta_columns();
  EXPECT_EQ(objection(one, decide(of_one, h200())), "a bulk copy by 1 k-tiles, tiles per CTA 1");
  EXPECT_EQ(objection(tiles, decide(kLayer, h200())), "a bulk copy by 2 k-tiles, tiles per CTA 2");
}

TEST(BulkActivations, comes_before_a_table_is_used) {
  Problem problem = kLayer;
  testing::set_element(problem, element("nf4")), problem.set_bias(true);
  auto schedule = bulk_copy(1), by_k_tiles = schedule, threads = schedule;
  schedule.m16_tiles = by_k_tiles.m16_tiles = threads.m16_tiles = 4;
  by_k_tiles.activations = activations::BulkCopy{.multicast = 1, .by_k_tiles = true};
  threads.activations = activations::AtOnce{};
  const auto data = LinearCase::integers(problem, 3);
  for (const DecodeSchedule& each : {schedule, by_k_tiles}) {
    EXPECT_EQ(data.run(lower(decide(problem, h200()), each), each),
              data.run(lower(decide(problem, h200()), threads), threads));
  }
}

TEST(BulkActivations, is_objected_to_where_rows_are_not_whole) {
  Problem ends = kLayer, gathered = kLayer, odd = kLayer;
  ends.k = 250, testing::set_group(ends, 0), gathered.permuted_columns = true, odd.k = 192;
  for (const Problem& problem : {ends, gathered, odd}) {
    EXPECT_THAT(objection(bulk_copy(1), decide(problem, h200())),
                HasSubstr("are not whole rows of 256"));
  }
  EXPECT_EQ(objection(bulk_copy(1), decide(kLayer, device("a100"))), "no copy engine");
  EXPECT_EQ(objection(bulk_copy(16), decide(kLayer, h200())), "a cluster of 16 tiles");
}

TEST(BulkActivations, of_which_no_step_may_be_left_out) {
  for (int multicast : {1, 2}) {
    const auto schedule = bulk_copy(multicast);
    EXPECT_EQ(caught(schedule, [](Program&) {}), "");
    EXPECT_THAT(caught(schedule, [](Program& p) { drop<SignalInit>(p.body); }),
                HasSubstr("before its signal_init"));
    EXPECT_THAT(caught(schedule, [](Program& p) { drop<Await>(p.body); }),
                HasSubstr("reads a copy that was not waited for"));
    EXPECT_THAT(caught(schedule, [](Program& p) { drop<CopyRows>(p.body); }),
                HasSubstr("waits forever"));
  }
  EXPECT_THAT(caught(bulk_copy(1),
                     [](Program& p) {
                       const auto first = std::ranges::find_if(p.body, [](const Statement& s) {
                         return std::holds_alternative<Barrier>(s.op);
                       });
                       p.body.erase(first);
                     }),
              HasSubstr("initialised without a barrier since"));
  EXPECT_THAT(caught(bulk_copy(2), [](Program& p) { drop<ClusterBarrier>(p.body); }),
              HasSubstr("without a barrier since"));
}

// Two peers that each copy half for both. Where each copies all for itself the numbers are right,
// too, for twice the traffic; a part that neither copies, or copies for peers that there are not,
// is noticed.
TEST(BulkActivations, must_copy_to_all_that_count_on_it) {
  EXPECT_THAT(caught(bulk_copy(2), [](Program& p) { find<CopyRows>(p.body).multicast = false; }),
              "");
  EXPECT_NE(
      caught(bulk_copy(2),
             [](Program& p) { find<CopyRows>(p.body).at = find<CopyRows>(p.body).at + Affine(8); }),
      "");
  EXPECT_THAT(caught(bulk_copy(1), [](Program& p) { find<CopyRows>(p.body).multicast = true; }),
              HasSubstr("no cluster"));
}

// Rows of tokens that the call has not hold anything: what came of them would be seen.
TEST(BulkActivations, leaves_other_rows_and_their_use_is_caught) {
  EXPECT_NE(caught(bulk_copy(1),
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
  EXPECT_THAT(caught(bulk_copy(1),
                     [](Program& p) {
                       auto& part = std::get<Within>(p.body.back().op);
                       const Statement last = part.body.back();
                       part.body.pop_back();
                       p.body.push_back(last);
                     }),
              "");  // a store of nothing: threads without tokens have none to write
  EXPECT_THAT(caught(bulk_copy(1),
                     [](Program& p) {
                       auto& part = std::get<Within>(p.body.back().op);
                       const auto sum = part.tile;
                       p.body.push_back({Add{sum, sum}});
                     }),
              HasSubstr("before it is set"));
  EXPECT_THAT(
      caught(bulk_copy(1),
             [](Program& p) { std::get<Within>(p.body.back().op).body.push_back({Barrier{}}); }),
      HasSubstr("what all threads must take part in"));
}

}  // namespace
}  // namespace ladder
