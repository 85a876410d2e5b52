// SPDX-License-Identifier: Apache-2.0
//
// Mutations of good programs: each is one slip of a compiler writer, and each is caught.
#include "program/slips.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "integer_layer.h"

namespace ladder {
namespace {

using testing::for_each_op;
using testing::LinearCase;
using testing::objection_to;

const Device& h200() { return device("h200"); }

const Problem kProblem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 64, 256);

/// Runs `mutate` on a good program and expects the verifier, the interpreter or the numbers to
/// object; returns the objection.
template <class Mutate>
std::string caught(Reduction reduction, Route route, const Mutate& mutate) {
  const DecodeSchedule schedule{.tokens = 8,
                                .warps_n = 1,
                                .warps_k = 2,
                                .blocks_per_warp = 1,
                                .reduction = reduction,
                                .route = route,
                                .dependent_launch = true};
  auto program = lower(decide(kProblem, h200()), schedule);
  mutate(program);
  return objection_to(program, schedule, LinearCase::integers(kProblem, 3));
}

/// Removes the `index`-th instruction of type Op from the top level.
template <class Op>
void drop(Program& program, int index = 0) {
  auto& body = program.body;
  for (auto at = body.begin(); at != body.end(); ++at) {
    if (std::holds_alternative<Op>(at->op) && index-- == 0) {
      body.erase(at);
      return;
    }
  }
  FAIL() << "nothing to drop";
}

RegisterId register_called(const Program& program, std::string_view name) {
  for (std::size_t id = 0; id < program.registers.size(); ++id) {
    if (program.registers[id].name == name) return static_cast<RegisterId>(id);
  }
  return -1;
}

TEST(Mutation, none_is_not_reported) {
  EXPECT_EQ(caught(Reduction::cluster, Route::in_place, [](Program&) {}), "");
}

TEST(Mutation, a_dropped_wait_is_caught) {
  EXPECT_THAT(caught(Reduction::cluster, Route::multiply_add, [](Program& p) { drop<Wait>(p); }),
              ::testing::HasSubstr("reads a copy that was not waited for, in: b = load_matrix"));
}

TEST(Mutation, a_ring_that_waits_one_k_tile_too_late_is_caught) {
  const DecodeSchedule ring{.tokens = 8,
                            .warps_n = 2,
                            .warps_k = 1,
                            .blocks_per_warp = 1,
                            .weights = weights::Ring{.k_tiles = 2, .stages = 2},
                            .reduction = Reduction::cluster};
  const Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, 256);
  auto program = lower(decide(problem, h200()), ring);
  for (auto& statement : program.body) {
    if (auto* rounds = std::get_if<For>(&statement.op); rounds != nullptr && rounds->unroll > 0) {
      if (auto* wait = std::get_if<Wait>(&rounds->body.front().op)) ++wait->pending;
    }
  }
  EXPECT_THAT(objection_to(program, ring, LinearCase::integers(problem, 2)),
              ::testing::HasSubstr("reads a copy that was not waited for, in: words = load"));
}

TEST(Mutation, a_dropped_barrier_is_caught) {
  for (int index : {0, 1}) {
    EXPECT_THAT(caught(Reduction::ordered, Route::multiply_add,
                       [&](Program& p) { drop<Barrier>(p, index); }),
                ::testing::HasSubstr("reads what another thread wrote, without a barrier"));
  }
}

TEST(Mutation, sums_over_a_ring_that_is_still_read_are_caught) {
  const DecodeSchedule ring{.tokens = 8,
                            .warps_n = 2,
                            .warps_k = 1,
                            .blocks_per_warp = 1,
                            .weights = weights::Ring{.k_tiles = 4, .stages = 2},
                            .reduction = Reduction::cluster};
  const Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, 512);
  auto program = lower(decide(problem, h200()), ring);
  drop<Barrier>(program, 1);
  EXPECT_THAT(objection_to(program, ring, LinearCase::integers(problem, 2)),
              ::testing::HasSubstr("overwrites what another thread"));
}

TEST(Mutation, a_dropped_cluster_barrier_is_caught) {
  EXPECT_THAT(caught(Reduction::cluster, Route::multiply_add,
                     [](Program& p) { drop<ClusterBarrier>(p, 0); }),
              ::testing::HasSubstr("without a cluster barrier"));
  EXPECT_THAT(caught(Reduction::cluster, Route::multiply_add,
                     [](Program& p) { drop<ClusterBarrier>(p, 1); }),
              ::testing::HasSubstr("a block ends while its peers may read"));
}

TEST(Mutation, a_dropped_ticket_is_caught) {
  EXPECT_THAT(caught(Reduction::ordered, Route::multiply_add,
                     [](Program& p) {
                       drop<Ticket>(p);
                       auto& branch = std::get<If>(p.body.back().op);
                       branch.variable = kSplit;
                     }),
              ::testing::HasSubstr("without a ticket"));
}

TEST(Mutation, a_dropped_dependent_wait_is_caught) {
  EXPECT_THAT(
      caught(Reduction::cluster, Route::multiply_add, [](Program& p) { drop<DependentWait>(p); }),
      ::testing::HasSubstr("reads x before the preceding kernel has ended"));
}

TEST(Mutation, a_dropped_pad_is_caught) {
  EXPECT_THAT(caught(Reduction::cluster, Route::multiply_add,
                     [](Program& p) {
                       for (auto& view : p.views) {
                         auto& stride = view.strides.back();
                         if (stride == 64 + 4) stride = 64 - 4;
                       }
                     }),
              ::testing::Ne(""));
}

TEST(Mutation, a_swapped_layout_is_caught) {
  EXPECT_THAT(caught(Reduction::cluster, Route::multiply_add,
                     [](Program& p) {
                       auto& layout = p.registers[register_called(p, "b")].layout;
                       std::swap(layout.threads[1], layout.threads[2]);
                     }),
              ::testing::HasSubstr("b is not laid out as the B operand"));
  EXPECT_THAT(caught(Reduction::cluster, Route::multiply_add,
                     [](Program& p) {
                       auto& layout = p.registers[register_called(p, "scale")].layout;
                       std::swap(layout.threads[1], layout.threads[2]);
                     }),
              ::testing::HasSubstr("of scale"));
}

TEST(Mutation, a_shifted_field_is_caught) {
  EXPECT_EQ(caught(Reduction::cluster, Route::multiply_add,
                   [](Program& p) { for_each_op<Unpack>(p.body, [](Unpack& i) { i.step = 0; }); }),
            "wrong numbers");
}

TEST(Mutation, indices_past_the_steps_of_a_block_and_the_groups_of_a_warp_are_caught) {
  EXPECT_THAT(
      caught(Reduction::cluster, Route::multiply_add,
             [](Program& p) { for_each_op<Unpack>(p.body, [](Unpack& i) { i.step = 4; }); }),
      ::testing::HasSubstr("step 4 of a block of 4"));
  EXPECT_THAT(caught(Reduction::cluster, Route::multiply_add,
                     [](Program& p) { for_each_op<Scale>(p.body, [](Scale& i) { i.group = 1; }); }),
              ::testing::HasSubstr("group 1 of 1 with scales"));
}

TEST(Mutation, a_missing_zero_point_is_caught) {
  EXPECT_EQ(caught(Reduction::cluster, Route::in_place,
                   [](Program& p) { for_each_op<Fill>(p.body, [](Fill& i) { i.value[1] = 0; }); }),
            "wrong numbers");
}

}  // namespace
}  // namespace ladder
