// SPDX-License-Identifier: Apache-2.0
//
// Blocks of a k-tile that are loaded anew one by one: the same numbers, and loads that begin
// sooner.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "integer_layer.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

const Device& h200() { return device("h200"); }

DecodeSchedule block_by_block(int stages, int k_tiles, Reduction reduction = Reduction::none,
                              int tiles = 1) {
  return {
      .tokens = 8,
      .warps_n = 1,
      .warps_k = 2,
      .blocks_per_warp = 2,
      .weights =
          weights::RegisterStages{
              .k_tiles = k_tiles, .stages = stages, .tiles_per_cta = tiles, .block_by_block = true},
      .reduction = reduction};
}

Problem layer(const DecodeSchedule& s, std::int64_t missing_columns = 0) {
  const auto splits = s.reduction == Reduction::none ? 1 : 2;
  return testing::integer_layer(4, 8, 128, Scalar::f16, s.tokens, s.tile_rows() * s.tiles_per_cta(),
                                s.cta_columns() * splits - missing_columns);
}

void expect_exact(const Problem& problem, const DecodeSchedule& schedule, std::int64_t m) {
  ASSERT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  const auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  const auto data = LinearCase::integers(problem, m);
  EXPECT_EQ(data.run(program, schedule), data.exact())
      << to_string(problem) << "; " << to_string(schedule) << "; m " << m;
}

// K-tiles that are written out and in a loop; columns that end inside a k-tile, and inside a block.
TEST(BlockByBlock, is_exact_for_every_reduction_number_of_stages_and_end) {
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (auto [stages, k_tiles] : {std::array{1, 3}, {2, 4}, {1, 9}, {2, 10}}) {
      const auto s = block_by_block(stages, k_tiles, reduction);
      for (std::int64_t missing : {0, 64, 72}) expect_exact(layer(s, missing), s, 3);
    }
  }
}

TEST(BlockByBlock, is_exact_for_tiles_of_rows_and_both_ways_to_stage) {
  for (auto reduction : {Reduction::none, Reduction::cluster}) {
    for (auto route : {Route::multiply_add, Route::in_place}) {
      for (int tiles : {1, 2, 3}) {
        for (const Activations& activations :
             {Activations(), Activations(activations::BulkCopy{.multicast = 1})}) {
          auto few = block_by_block(2, 4, reduction, tiles),
               all = block_by_block(1, 4, reduction, tiles);
          few.activations = all.activations = activations, few.route = all.route = route;
          few.m16_tiles = 2;
          expect_exact(layer(few), few, 8);
          expect_exact(layer(all), all, 1);
        }
      }
    }
  }
}

TEST(BlockByBlock, goes_with_activations_in_stages_and_every_width) {
  for (const Activations& activations :
       {Activations(activations::Staged{.stages = 4}),
        Activations(activations::Signalled{.stages = 4, .consumer_lag = 1})}) {
    auto s = block_by_block(2, 12, Reduction::cluster);
    s.activations = activations;
    expect_exact(layer(s), s, 3);
    expect_exact(layer(s, 72), s, 8);
  }
  for (int bits : {1, 3, 8}) {
    const auto s = block_by_block(1, 4);
    auto problem = layer(s);
    testing::set_integers(problem, bits, 1 << (bits - 1));
    expect_exact(problem, s, 3);
  }
  const auto s = block_by_block(2, 4);
  auto one_scale = layer(s), zeros = layer(s);
  testing::set_group(one_scale, 0), one_scale.set_activation(Scalar::bf16);
  expect_exact(one_scale, s, 3);
  testing::set_stored_zero(zeros, Zero::integer);
  expect_exact(zeros, s, 3);
}

// The first block's load stands before the second's products.
TEST(BlockByBlock, asks_for_a_block_before_the_next_is_multiplied) {
  const auto s = block_by_block(1, 3);
  const auto text = to_string(lower(decide(layer(s), h200()), s));
  const auto products = text.find("acc += mma"), load = text.find(" now", products);
  EXPECT_LT(load, text.find("acc += mma", products + 1));
  auto whole = s;
  std::get<weights::RegisterStages>(whole.weights).block_by_block = false;
  const auto other = to_string(lower(decide(layer(s), h200()), whole));
  EXPECT_GT(other.find(" now", other.find("acc += mma")),
            other.find("total +=", other.find("acc += mma")));
}

TEST(BlockByBlock, is_objected_to_where_there_is_nothing_to_divide) {
  const auto refused = [](auto change) {
    auto s = block_by_block(2, 4);
    auto problem = layer(s);
    change(s, problem);
    return objection(s, decide(problem, h200()));
  };
  EXPECT_THAT(refused([](DecodeSchedule& s, Problem&) {
                std::get<weights::RegisterStages>(s.weights).stages = 4;
              }),
              HasSubstr("4 k-tiles, register stages 4"));
  EXPECT_THAT(refused([](DecodeSchedule& s, Problem& problem) {
                s.blocks_per_warp = 1;
                problem.k = s.cta_columns();
              }),
              HasSubstr("block by block: 1 in a k-tile"));
  EXPECT_THAT(refused([](DecodeSchedule&, Problem& problem) { testing::set_group(problem, 64); }),
              HasSubstr("groups of 64"));
}

}  // namespace
}  // namespace ladder
