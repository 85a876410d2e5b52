// SPDX-License-Identifier: Apache-2.0
//
// Activations that come in stages: exact by every way of going through the k-tiles, whatever the
// layer. mutation_test.cpp drops their waits and barriers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "integer_layer.h"
#include "pipelines/decode/shared_memory.h"
#include "program/linear_case.h"

namespace ladder {
namespace {

using activations::Signalled, activations::Staged;
using ::testing::HasSubstr;
using testing::LinearCase;
using weights::DoubleBuffered, weights::RegisterStages, weights::Ring;

const Device& h200() { return device("h200"); }

/// K-tiles of 128 columns, or 256 with four warps.
DecodeSchedule in_stages(int warps_n, int warps_k, const Weights& weights,
                         const Activations& activations, Reduction reduction = Reduction::none) {
  return {.tokens = 8,
          .warps_n = warps_n,
          .warps_k = warps_k,
          .blocks_per_warp = 1,
          .weights = weights,
          .activations = activations,
          .reduction = reduction};
}

void expect_exact(const Problem& problem, const DecodeSchedule& schedule, std::int64_t m) {
  ASSERT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  const auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  const auto data = LinearCase::integers(problem, m);
  EXPECT_EQ(data.run(program, schedule), data.exact())
      << to_string(problem) << "; " << to_string(schedule) << "; m " << m;
}

Problem layer(const DecodeSchedule& s, std::int64_t missing_columns = 0) {
  const auto splits = s.reduction == Reduction::none ? 1 : 2;
  return testing::integer_layer(4, 8, 64, Scalar::f16, s.tokens, s.tile_rows() * s.tiles_per_cta(),
                                s.cta_columns() * splits - missing_columns);
}

// Up to 8 k-tiles are written out, more are a loop with what is left behind it.
TEST(ActivationStages, are_exact_with_every_way_of_weights_and_number_of_k_tiles) {
  const std::pair<Weights, int> ways[] = {{DoubleBuffered{.k_tiles = 2}, 2},
                                          {DoubleBuffered{.k_tiles = 5}, 3},
                                          {RegisterStages{.k_tiles = 4, .stages = 1}, 2},
                                          {RegisterStages{.k_tiles = 4, .stages = 2}, 4},
                                          {RegisterStages{.k_tiles = 9, .stages = 1}, 3},
                                          {RegisterStages{.k_tiles = 10, .stages = 2}, 2},
                                          {RegisterStages{.k_tiles = 12, .stages = 2}, 4},
                                          {RegisterStages{.k_tiles = 12, .stages = 4}, 4}};
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (const auto& [weights, stages] : ways) {
      for (int warps_n : {1, 2}) {
        const auto s = in_stages(warps_n, 2, weights, Staged{.stages = stages}, reduction);
        expect_exact(layer(s), s, 3);
        expect_exact(layer(s, 64 + 8), s, 8);
      }
    }
  }
}

// Signals in place of the barrier, at every lookahead.
TEST(ActivationStages, are_exact_when_warps_are_apart) {
  const std::pair<Weights, Signalled> ways[] = {
      {DoubleBuffered{.k_tiles = 4}, {.stages = 3, .consumer_lag = 1}},
      {DoubleBuffered{.k_tiles = 5}, {.stages = 4, .consumer_lag = 2}},
      {RegisterStages{.k_tiles = 4, .stages = 2}, {.stages = 4, .consumer_lag = 1}},
      {RegisterStages{.k_tiles = 4, .stages = 2}, {.stages = 4, .consumer_lag = 2}},
      {RegisterStages{.k_tiles = 12, .stages = 2}, {.stages = 4, .consumer_lag = 1}},
      {RegisterStages{.k_tiles = 9, .stages = 1}, {.stages = 3, .consumer_lag = 1}},
      {RegisterStages{.k_tiles = 16, .stages = 4}, {.stages = 8, .consumer_lag = 6}},
      {RegisterStages{.k_tiles = 20, .stages = 4}, {.stages = 8, .consumer_lag = 3}}};
  for (const auto& [weights, signalled] : ways) {
    for (bool dependent : {false, true}) {
      auto s = in_stages(2, 2, weights, signalled, Reduction::cluster);
      s.dependent_launch = dependent;
      expect_exact(layer(s), s, 3);
      expect_exact(layer(s, 64 + 8), s, 8);
      expect_exact(layer(s, 3), s, 8);
      auto problem = layer(s);
      problem.permuted_columns = true;
      expect_exact(problem, s, 2);
    }
  }
}

TEST(ActivationStages, come_with_those_of_a_ring_of_weights) {
  for (auto [k_tiles, stages] : {std::array{4, 2}, {5, 3}, {2, 3}}) {
    const auto s = in_stages(2, 2, Ring{.k_tiles = k_tiles, .stages = stages},
                             Staged{.stages = stages}, Reduction::cluster);
    if (stages > k_tiles) {
      EXPECT_THAT(objection(s, decide(layer(s), h200())),
                  HasSubstr("activation stages 3 of 2 k-tiles"));
      continue;
    }
    expect_exact(layer(s), s, 5);
    expect_exact(layer(s, 16), s, 8);
    expect_exact(layer(s, 3), s, 8);
  }
}

TEST(ActivationStages, come_again_for_every_tile_of_rows) {
  for (auto reduction : {Reduction::none, Reduction::cluster}) {
    for (int tiles : {2, 3}) {
      for (auto route : {Route::multiply_add, Route::in_place}) {
        auto s = in_stages(1, 2, RegisterStages{.k_tiles = 4, .stages = 2, .tiles_per_cta = tiles},
                           Staged{.stages = 2}, reduction);
        s.route = route;
        expect_exact(layer(s), s, 3);
        s.m16_tiles = 2, s.activations = Staged{.stages = 4};
        expect_exact(layer(s), s, 8);
      }
    }
  }
}

// Rows that end inside 16 bytes, and columns in another order, are not copied asynchronously.
TEST(ActivationStages, serve_every_layer) {
  for (const Weights& weights :
       {Weights(DoubleBuffered{.k_tiles = 3}), Weights(RegisterStages{.k_tiles = 4, .stages = 2}),
        Weights(RegisterStages{.k_tiles = 10, .stages = 2})}) {
    for (auto route : {Route::multiply_add, Route::in_place}) {
      auto s = in_stages(2, 2, weights, Staged{.stages = 2}, Reduction::cluster);
      s.route = route, s.dependent_launch = s.register_stages() != nullptr;
      for (std::int64_t missing : {0, 5, 70}) {
        auto problem = layer(s, missing);
        testing::set_group(problem, 128), problem.set_bias(true);
        if (missing == 0) problem.permuted_columns = true;
        expect_exact(problem, s, 8);
        problem.set_activation(Scalar::bf16);
        if (route == Route::multiply_add) expect_exact(problem, s, 1);
      }
      auto zeros = layer(s);
      testing::set_stored_zero(zeros, Zero::integer);
      expect_exact(zeros, s, 3);
      testing::set_stored_zero(zeros, Zero::rescale);
      if (route == Route::multiply_add) expect_exact(zeros, s, 3);
    }
    const auto s = in_stages(2, 2, weights, Staged{.stages = 2});
    auto table = layer(s);
    testing::set_element(table, element("nf4"));
    const auto program = lower(decide(table, h200()), s);
    const auto data = LinearCase::reals(table, 4);
    const auto y = data.run(program, s);
    const auto reference = evaluate(table, data.data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i)) << i;
    }
  }
}

TEST(ActivationStages, need_shared_memory_for_so_many_however_many_columns_a_cta_has) {
  const RegisterStages weights{.k_tiles = 28, .stages = 2};
  const auto few = in_stages(2, 4, weights, Staged{.stages = 4}, Reduction::cluster);
  const auto all = in_stages(2, 4, weights, activations::AtOnce{}, Reduction::cluster);
  const auto problem = layer(few);
  EXPECT_LT(shared_bytes(few, problem), shared_bytes(all, problem) / 2);
  EXPECT_EQ(shared_bytes(few, problem), lower(decide(problem, h200()), few).shared_bytes());
}

TEST(ActivationStages, that_cannot_be_are_objected_to) {
  const auto refused = [](const Weights& weights, const Activations& activations) {
    const auto s = in_stages(1, 2, weights, activations);
    return objection(s, decide(layer(s), h200()));
  };
  const DoubleBuffered four{.k_tiles = 4};
  const RegisterStages staged{.k_tiles = 4, .stages = 2};
  EXPECT_EQ(refused(four, Staged{.stages = 1}), "activation stages 1 of 4 k-tiles");
  EXPECT_EQ(refused(four, Staged{.stages = 5}), "activation stages 5 of 4 k-tiles");
  EXPECT_EQ(refused(staged, Staged{.stages = 3}), "activation stages 3, register stages 2");
  EXPECT_EQ(
      refused(RegisterStages{.k_tiles = 6, .stages = 2, .tiles_per_cta = 2}, Staged{.stages = 4}),
      "tiles of 6 k-tiles, activation stages 4");
  EXPECT_EQ(refused(Ring{.k_tiles = 4, .stages = 2}, Staged{.stages = 3}),
            "activation stages 3, stages 2 of weights");
  EXPECT_EQ(refused(staged, Signalled{.stages = 4, .consumer_lag = 3}),
            "consumer lag 3, activation stages 4");
  EXPECT_EQ(refused(Ring{.k_tiles = 4, .stages = 3}, Signalled{.stages = 3, .consumer_lag = 1}),
            "a consumer lag is for weights through registers");
  EXPECT_EQ(refused(RegisterStages{.k_tiles = 4, .stages = 2, .tiles_per_cta = 2},
                    Signalled{.stages = 4, .consumer_lag = 1}),
            "consumer lag 1, tiles per CTA 2");
  const auto s = in_stages(1, 2, staged, Signalled{.stages = 4, .consumer_lag = 1});
  EXPECT_EQ(objection(s, decide(layer(s), device("a100"))),
            "a consumer lag is for devices that wait for signals");
}

}  // namespace
}  // namespace ladder
