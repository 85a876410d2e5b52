// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels through the interpreter: exact on integers, whatever the shape of the tile.
#include <gtest/gtest.h>

#include <cmath>

#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/passes.h"
#include "program/tile_cases.h"

namespace ladder {
namespace {

using testing::LinearCase;

void expect_right(const Linear& expr, const TileSchedule& schedule, std::int64_t m, unsigned seed) {
  const Decisions decisions = decide(expr, device("h200"));
  const Program program = lower(decisions, schedule);
  ASSERT_NO_THROW(verify(program, device("h200").shared_per_block_bytes))
      << to_string(expr) << "; " << to_string(schedule);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, expr)) << to_string(schedule);
  const auto data = LinearCase::integers(expr, m, seed);
  const auto y = data.run(program, schedule);
  const auto wanted = data.exact();
  const auto reference = evaluate(expr, data.data);
  const bool rounded =
      decoding_error(expr) > 0 || (expr.element != nullptr && expr.element->exponent_bits > 4);
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (rounded && std::fabs(reference.y[i]) > data.largest()) continue;
    if (rounded) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i))
          << to_string(expr) << "; " << to_string(schedule) << "; y[" << i << "]";
    } else {
      ASSERT_EQ(y[i], wanted[i]) << to_string(expr) << "; " << to_string(schedule) << "; y[" << i
                                 << "]";
    }
  }
}

TEST(Tiles, of_every_shape_are_exact) {
  const auto cases = testing::tile_cases();
  ASSERT_GE(cases.size(), 40U);
  unsigned seed = 0;
  for (const auto& [expr, schedule] : cases) {
    expect_right(expr, schedule, expr.max_m, ++seed);
    expect_right(expr, schedule, 1 + seed % expr.max_m, seed);
  }
}

class TilesOfType : public ::testing::TestWithParam<const char*> {};

TEST_P(TilesOfType, are_exact) {
  unsigned seed = 0, kept = 0;
  for (const auto& shape : {testing::kTileShapes[0], testing::kTileShapes[2]}) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (Route route : {Route::multiply_add, Route::in_place}) {
        const auto reduction = ++seed % 2 == 0 ? Reduction::none : Reduction::cluster;
        try {
          for (auto& [expr, schedule] :
               testing::tile_case(shape, ttype(GetParam()), activation, reduction, route, false)) {
            ++kept;
            expect_right(expr, schedule, expr.max_m, seed);
          }
        } catch (const Unsupported&) {
          // wider than float16
        }
      }
    }
  }
  EXPECT_GE(kept, 1U);
}

INSTANTIATE_TEST_SUITE_P(Types, TilesOfType, ::testing::ValuesIn(testing::kKindsOfTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(Tiles, have_as_many_barriers_as_are_needed) {
  // So many that all stages are used again.
  for (const auto& [expr, schedule] : testing::tile_cases(6)) {
    const Program program = lower(decide(expr, device("h200")), schedule);
    EXPECT_EQ(count_barriers(with_barriers(program)), count_barriers(program))
        << to_string(expr) << "; " << to_string(schedule);
  }
}

TEST(Tiles, are_read_back_from_their_print) {
  for (const auto& [expr, schedule] : testing::tile_cases()) {
    EXPECT_EQ(schedule_of(to_string(schedule)), Schedule(schedule)) << to_string(schedule);
  }
  EXPECT_EQ(to_string(TileSchedule{.rows = 256,
                                   .tokens = 64,
                                   .columns = 128,
                                   .warps_n = 8,
                                   .warps_m = 1,
                                   .k_tiles = 16,
                                   .stages = 4,
                                   .reduction = Reduction::cluster,
                                   .route = Route::multiply_add,
                                   .dependent_launch = false,
                                   .ctas_per_sm = 1}),
            "tile 256x64x128, warps 8x1, k-tiles 16, stages 4, cluster, multiply_add, 1 per "
            "multiprocessor");
  EXPECT_EQ(schedule_of("tile 256x64x0128, warps 8x1, k-tiles 16, stages 4, cluster, multiply_add, "
                        "1 per multiprocessor"),
            std::nullopt);
}

}  // namespace
}  // namespace ladder
