// SPDX-License-Identifier: Apache-2.0
//
// The program computes the expression, proved without a device.
#include "program/interpret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/error.h"
#include "integer_layer.h"
#include "pipelines/decode/shared_memory.h"
#include "program/linear_case.h"
#include "program/passes.h"

namespace ladder {
namespace {

using testing::LinearCase;

const Device& h200() { return device("h200"); }

Program checked(const Problem& problem, const DecodeSchedule& schedule) {
  EXPECT_EQ(objection(schedule, decide(problem, h200())), "") << to_string(schedule);
  auto program = lower(decide(problem, h200()), schedule);
  verify(program, h200().shared_per_block_bytes);
  return program;
}

void expect_exact(const Problem& problem, const DecodeSchedule& schedule, std::int64_t m) {
  const auto data = LinearCase::integers(problem, m);
  EXPECT_EQ(data.run(checked(problem, schedule), schedule), data.exact())
      << to_string(problem) << "; " << to_string(schedule) << "; m " << m;
}

constexpr DecodeSchedule kSmall{.tokens = 8, .warps_n = 1, .warps_k = 2, .blocks_per_warp = 1};

DecodeSchedule with(DecodeSchedule schedule, Reduction reduction, Route route,
                    bool dependent = false) {
  schedule.reduction = reduction;
  schedule.route = route;
  schedule.dependent_launch = dependent;
  return schedule;
}

TEST(Program, computes_a_linear_exactly_by_every_reduction_and_route) {
  for (auto reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
    for (auto route : {Route::multiply_add, Route::in_place}) {
      const Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 64,
                                                     reduction == Reduction::none ? 128 : 256);
      expect_exact(problem, with(kSmall, reduction, route, true), 3);
    }
  }
}

TEST(Program, computes_every_width_in_both_activations) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      expect_exact(testing::integer_layer(bits, 1 << (bits - 1), 64, activation, 8, 64, 128),
                   kSmall, 2);
    }
  }
}

// Groups: a row, four warps' columns, one warp's, half of it, two k-steps, one.
TEST(Program, finds_the_scale_of_every_group_size) {
  for (std::int64_t group : {0, 512, 128, 64, 32, 16}) {
    expect_exact(testing::integer_layer(4, 8, group, Scalar::f16, 8, 64, 512),
                 {.tokens = 8,
                  .warps_n = 1,
                  .warps_k = 2,
                  .blocks_per_warp = 2,
                  .reduction = Reduction::cluster},
                 2);
    expect_exact(testing::integer_layer(4, 8, group, Scalar::f16, 8, 64, 512),
                 {.tokens = 8,
                  .warps_n = 1,
                  .warps_k = 2,
                  .blocks_per_warp = 1,
                  .weights = weights::Ring{.k_tiles = 2, .stages = 3},
                  .reduction = Reduction::cluster,
                  .dependent_launch = true},
                 2);
  }
}

// N and K one below, at and above a block; M one, a tile, one above it.
TEST(Program, borders_are_neither_read_nor_written) {
  for (std::int64_t n : {63, 65}) {
    for (std::int64_t k : {120, 136}) {
      expect_exact(testing::integer_layer(4, 8, 0, Scalar::f16, 8, n, k),
                   with(kSmall, k > 128 ? Reduction::ordered : Reduction::none, Route::in_place),
                   1);
    }
  }
  DecodeSchedule wide = kSmall;
  wide.tokens = 16;
  for (std::int64_t m : {8, 9, 16})
    expect_exact(testing::integer_layer(4, 8, 128, Scalar::f16, 16, 64, 128), wide, m);
}

// Of 64 rows four warps have four tokens together, of a part of them in a cluster sixteen; of 16
// rows three warps have twelve. Neither divides the tokens.
TEST(Program, threads_that_have_tokens_together_write_all_of_them) {
  DecodeSchedule wide{.tokens = 24, .warps_n = 1, .warps_k = 4, .blocks_per_warp = 1};
  const Problem problem = testing::integer_layer(4, 8, 0, Scalar::f16, 24, 64, 1024);
  // More tokens than schedules are chosen for; lowering serves them all the same.
  const auto expect_lowered = [](const Problem& problem, const DecodeSchedule& schedule,
                                 std::int64_t m) {
    const auto program = lower(decide(problem, h200()), schedule);
    verify(program, h200().shared_per_block_bytes);
    const auto data = LinearCase::integers(problem, m);
    EXPECT_EQ(data.run(program, schedule), data.exact()) << to_string(schedule) << "; m " << m;
  };
  for (std::int64_t m : {17, 24}) {
    expect_lowered(problem, with(wide, Reduction::cluster, wide.route), m);
  }
  wide.m16_tiles = 1;
  for (std::int64_t m : {16, 17, 24})
    expect_lowered(testing::integer_layer(4, 8, 0, Scalar::f16, 24, 64, 256), wide, m);
  DecodeSchedule odd{.tokens = 16,
                     .warps_n = 1,
                     .warps_k = 3,
                     .blocks_per_warp = 1,
                     .reduction = Reduction::cluster};
  for (std::int64_t m : {12, 16})
    expect_exact(testing::integer_layer(4, 8, 0, Scalar::f16, 16, 64, 768), odd, m);
}

TEST(Program, arranges_warps_along_n_and_k) {
  for (auto [n, k] : {std::pair{1, 4}, {2, 2}, {4, 1}}) {
    expect_exact(testing::integer_layer(4, 8, 128, Scalar::f16, 8, 256, std::int64_t{128} * k),
                 {.tokens = 8, .warps_n = n, .warps_k = k, .blocks_per_warp = 2}, 8);
  }
}

// Fewer k-tiles than stages, as many, more; K that ends inside the last k-tile.
TEST(Program, keeps_k_tiles_in_flight) {
  for (const Weights& weights : {Weights(weights::Ring{.k_tiles = 2, .stages = 3}),
                                 Weights(weights::Ring{.k_tiles = 3, .stages = 3}),
                                 Weights(weights::Ring{.k_tiles = 4, .stages = 2}),
                                 Weights(weights::Ring{.k_tiles = 5, .stages = 3}),
                                 Weights(weights::DoubleBuffered{.k_tiles = 4})}) {
    for (Route route : {Route::multiply_add, Route::in_place}) {
      for (int warps_k : {1, 2}) {
        const DecodeSchedule schedule{.tokens = 8,
                                      .warps_n = 2,
                                      .warps_k = warps_k,
                                      .blocks_per_warp = 1,
                                      .weights = weights,
                                      .reduction = Reduction::cluster,
                                      .route = route,
                                      .dependent_launch = warps_k == 2};
        const auto k = 2 * schedule.cta_columns() - 8;
        expect_exact(testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, k), schedule, 3);
      }
    }
  }
}

/// Two k-tiles in register stages, in tiles of rows one after the other.
DecodeSchedule staged(int m16_tiles, const weights::RegisterStages& way, Reduction reduction) {
  return {.tokens = 8,
          .warps_n = 1,
          .warps_k = 2,
          .blocks_per_warp = 1,
          .m16_tiles = m16_tiles,
          .weights = way,
          .reduction = reduction,
          .dependent_launch = way.tiles_per_cta == 2};
}

// A k-tile that was multiplied makes room for a later one, of this tile of rows or the next; rows
// end at a tile, inside one, and so that the last tile of some CTAs has none.
TEST(Program, goes_over_tiles_of_rows_with_the_activations_staged_once) {
  for (int tiles : {1, 2, 3}) {
    for (auto reduction : {Reduction::none, Reduction::cluster}) {
      for (std::int64_t n : {192, 130}) {
        const std::int64_t k = reduction == Reduction::none ? 256 : 512;
        for (int stages : {1, 2}) {
          const weights::RegisterStages way{.k_tiles = 2, .stages = stages, .tiles_per_cta = tiles};
          expect_exact(testing::integer_layer(4, 8, 64, Scalar::f16, 8, n, k),
                       staged(4, way, reduction), 3);
          expect_exact(testing::integer_layer(4, 8, 128, Scalar::bf16, 8, n, k),
                       staged(2, way, reduction), 8);
          expect_exact(testing::integer_layer(4, 8, 64, Scalar::f16, 8, n, k),
                       with(staged(2, way, reduction), reduction, Route::in_place), 3);
        }
      }
    }
  }
}

// Where the words of a part of a block are whole pieces of 16 bytes; the others are objected to.
TEST(Program, gives_a_warp_a_part_of_the_rows_of_a_block) {
  for (int bits = 1; bits <= 8; ++bits) {
    for (int m16_tiles : {1, 2}) {
      const Problem problem =
          testing::integer_layer(bits, 1 << (bits - 1), 64, Scalar::f16, 8, 128, 256);
      for (int tiles : {1, 2}) {
        const auto schedule =
            staged(m16_tiles, {.k_tiles = 2, .stages = 2, .tiles_per_cta = tiles}, Reduction::none);
        if (m16_tiles * bits % 4 == 0) {
          expect_exact(problem, schedule, 2);
        } else {
          EXPECT_THAT(objection(schedule, decide(problem, h200())),
                      ::testing::HasSubstr("not whole pieces of 16 bytes"));
        }
      }
    }
  }
}

// Two rows' scales of one byte are half a word, which no load has a register for.
TEST(Program, parts_of_blocks_have_whole_words_of_scales) {
  for (Scalar scale : {Scalar::f16, Scalar::e8m0, Scalar::e4m3}) {
    Problem problem = testing::integer_layer(4, 8, 32, Scalar::f16, 8, 128, 256);
    testing::set_scale(problem, scale);
    expect_exact(problem, staged(2, {.k_tiles = 2, .stages = 2}, Reduction::none), 2);
    if (scale == Scalar::f16) {
      expect_exact(problem, staged(1, {.k_tiles = 2, .stages = 2}, Reduction::none), 2);
    } else {
      EXPECT_THAT(objection(staged(1, {.k_tiles = 2, .stages = 2}, Reduction::none),
                            decide(problem, h200())),
                  ::testing::HasSubstr("scales of 2 rows"));
    }
  }
}

TEST(Program, register_stages_that_cannot_be_are_objected_to) {
  const Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, 512);
  const auto refused = [&](const weights::RegisterStages& way, Reduction reduction,
                           int warps_n = 1) {
    auto schedule = staged(warps_n == 1 ? 4 : 2, way, reduction);
    schedule.warps_n = warps_n;
    return objection(schedule, decide(problem, h200()));
  };
  EXPECT_THAT(refused({.k_tiles = 2, .stages = 2, .tiles_per_cta = 2}, Reduction::ordered),
              ::testing::HasSubstr("several tiles per CTA are for sums that wait"));
  EXPECT_EQ(refused({.k_tiles = 2, .stages = 3, .tiles_per_cta = 2}, Reduction::cluster),
            "2 k-tiles, register stages 3");
  EXPECT_EQ(refused({.k_tiles = 2, .stages = 2, .reduction_buffers = 2}, Reduction::cluster),
            "reduction buffers 2, tiles per CTA 1");
  EXPECT_EQ(refused({.k_tiles = 2, .stages = 2, .tiles_per_cta = 2, .reduction_buffers = 3},
                    Reduction::cluster),
            "reduction buffers 3, tiles per CTA 2");
  EXPECT_THAT(refused({.k_tiles = 2, .stages = 2}, Reduction::cluster, 2),
              ::testing::HasSubstr("one warp along N"));
}

TEST(Program, sums_of_a_tile_are_not_overwritten_before_they_were_read) {
  const Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 128, 256);
  const auto schedule = staged(4, {.k_tiles = 2, .stages = 2, .tiles_per_cta = 2}, Reduction::none);
  auto program = lower(decide(problem, h200()), schedule);
  for (auto& statement : program.body) {
    auto* loop = std::get_if<For>(&statement.op);
    if (loop == nullptr || program.variables[loop->variable].name != "sweep") continue;
    std::erase_if(loop->body, [first = true](const Statement& inner) mutable {
      return std::holds_alternative<Barrier>(inner.op) && std::exchange(first, false);
    });
  }
  EXPECT_THAT([&] { LinearCase::integers(problem, 3).run(program, schedule); },
              ::testing::ThrowsMessage<InternalError>(::testing::HasSubstr("sums")));
}

// The barrier of each tile of rows then serves the tile before as well.
TEST(Program, tiles_that_take_two_reduction_buffers_in_turn_need_a_barrier_less) {
  const Problem problem = testing::integer_layer(4, 8, 64, Scalar::f16, 8, 192, 512);
  const auto with_buffers = [](int tiles, int buffers) {
    return staged(4,
                  {.k_tiles = 2, .stages = 2, .tiles_per_cta = tiles, .reduction_buffers = buffers},
                  Reduction::cluster);
  };
  for (int tiles : {2, 3}) {
    const auto one = with_buffers(tiles, 1), two = with_buffers(tiles, 2);
    expect_exact(problem, two, 3);
    EXPECT_EQ(count_barriers(lower(decide(problem, h200()), one)),
              count_barriers(lower(decide(problem, h200()), two)) + 1);
    EXPECT_EQ(shared_bytes(two, problem) - shared_bytes(one, problem),
              one.warps_k * one.tokens * (one.tile_rows() + kSumPad) * 4);
  }
  const auto two = with_buffers(3, 2);
  auto program = lower(decide(problem, h200()), two);
  for (View& view : program.views) {
    if (program.buffers[view.buffer].name == "sums") view.offset = 0;
  }
  const auto data = LinearCase::integers(problem, 3);
  EXPECT_THAT(
      [&] { data.run(program, two); },
      ::testing::ThrowsMessage<InternalError>(::testing::HasSubstr("overwrites what another")));
}

TEST(Program, stays_within_the_bound_on_real_numbers) {
  for (auto route : {Route::multiply_add, Route::in_place}) {
    const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 8, 64, 256);
    const auto schedule = with(kSmall, Reduction::cluster, route);
    const auto data = LinearCase::reals(problem, 4);
    const auto y = data.run(checked(problem, schedule), schedule);
    const auto reference = evaluate(problem, data.data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i)) << i;
    }
  }
}

TEST(Program, every_candidate_of_the_scheduler_is_well_formed) {
  const Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 16, 8192, 8192);
  int kept = 0;
  for (const auto& candidate : candidates(decide(problem, h200()))) {
    if (!candidate.dropped.empty()) continue;
    ++kept;
    const auto program = lower(decide(problem, h200()), candidate.schedule);
    EXPECT_NO_THROW(verify(program, h200().shared_per_block_bytes))
        << to_string(candidate.schedule);
  }
  EXPECT_GE(kept, 8);
}

TEST(Program, prints_as_declarations_and_instructions) {
  const auto text =
      to_string(checked(testing::integer_layer(4, 8, 128, Scalar::f16, 8, 64, 128), kSmall));
  EXPECT_THAT(text, ::testing::HasSubstr("words = load weight[tile, split*2, 0, 0, 0] once\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("acc += mma a, b\n"));
}

}  // namespace
}  // namespace ladder
