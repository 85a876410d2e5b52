// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels through the interpreter: exact on integers, whatever the shape of the tile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

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
  const auto warpgroups =
      std::ranges::count_if(cases, [](const auto& each) { return each.second.warpgroups; });
  ASSERT_GE(warpgroups, 20);
  ASSERT_GE(cases.size() - static_cast<std::size_t>(warpgroups), 40U);
  unsigned seed = 0;
  for (const auto& [expr, schedule] : cases) {
    expect_right(expr, schedule, expr.max_m, ++seed);
    expect_right(expr, schedule, 1 + seed % expr.max_m, seed);
  }
}

class TilesOfType : public ::testing::TestWithParam<const char*> {};

TEST_P(TilesOfType, are_exact) {
  unsigned seed = 0, kept[2] = {};
  for (const auto& [shape, warpgroups] : {std::pair{testing::kTileShapes[0], false},
                                          {testing::kTileShapes[2], false},
                                          {testing::kWarpgroupShapes[0], true},
                                          {testing::kWarpgroupShapes[2], true}}) {
    for (Scalar activation : {Scalar::f16, Scalar::bf16}) {
      for (Route route : {Route::multiply_add, Route::in_place}) {
        const auto reduction = ++seed % 2 == 0 ? Reduction::none : Reduction::cluster;
        try {
          for (auto& [expr, schedule] : testing::tile_case(
                   shape, ttype(GetParam()), activation, reduction, route, false, 3, warpgroups)) {
            ++kept[warpgroups];
            expect_right(expr, schedule, expr.max_m, seed);
          }
        } catch (const Unsupported&) {
          // wider than float16
        }
      }
    }
  }
  EXPECT_GE(kept[false], 1U);
  EXPECT_GE(kept[true], 1U);
}

INSTANTIATE_TEST_SUITE_P(Types, TilesOfType, ::testing::ValuesIn(testing::kKindsOfTypes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

class TilesOfBytes : public ::testing::TestWithParam<const char*> {};

TEST_P(TilesOfBytes, are_exact) {
  const TType& type = ttype(GetParam());
  const bool floats = type.element->encoding == Encoding::floating;
  const Scalar x = floats ? Scalar::e4m3 : Scalar::s8;
  // Others have values so far apart that float32 rounds their sums.
  const bool exact_in_f32 = !floats || type.element->exponent_bits <= 3;
  unsigned seed = 0, kept[2] = {}, of_wide[2] = {};
  const auto run = [&](const auto& shapes, bool warpgroups) {
    for (const auto& shape : shapes) {
      const auto reduction = static_cast<Reduction>(++seed % 3);
      const auto activation = seed % 2 == 0 ? Scalar::f16 : Scalar::bf16;
      for (auto& [expr, schedule] : testing::tile_case(shape, type, activation, reduction,
                                                       Route::bytes, false, 3, warpgroups, x)) {
        ++kept[warpgroups];
        expr.bias = seed % 2 == 0;
        expr.wide_y = seed % 4 < 2 && exact_in_f32;
        ++of_wide[expr.wide_y];
        expect_right(expr, schedule, 1 + seed * 7 % expr.max_m, seed);
        expect_right(expr, schedule, expr.max_m, seed);
      }
    }
  };
  run(testing::kTileShapes, false);
  run(testing::kByteShapes, true);
  EXPECT_GE(kept[false], 2U);
  EXPECT_GE(kept[true], 2U);
  EXPECT_GE(of_wide[true], exact_in_f32 ? 2U : 0U);
}

constexpr const char* kFloatsOfBytes[] = {
    "mxfp4",
    "float8_e4m3,channel",
    "float8_e4m3,group=128,scale=float32",
    "float6_e3m2,group=64,scale=float16",
    "float6_e2m3,channel,scale=float16",
    "float4_e2m1,group=256,scale=float16",
    "float3_e1m1,group=128,scale=float16",
};
INSTANTIATE_TEST_SUITE_P(Integers, TilesOfBytes, ::testing::ValuesIn(testing::kIntegersOfBytes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });
INSTANTIATE_TEST_SUITE_P(Floats, TilesOfBytes, ::testing::ValuesIn(kFloatsOfBytes),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

// As of a table of values c - 1.5: of 7 bits and more the zero point in the byte's unit may be no
// whole number.
TEST(Tiles, of_bytes_with_a_zero_point_between_two_codes_are_exact_or_refused) {
  for (int bits = 1; bits <= 8; ++bits) {
    const TType& type = ttype("uint" + std::to_string(bits) + ",group=128,scale=float16");
    unsigned kept = 0;
    for (const auto& shape : testing::kByteShapes) {
      for (auto [expr, schedule] : testing::tile_case(shape, type, Scalar::f16, Reduction::none,
                                                      Route::bytes, false, 3, true, Scalar::s8)) {
        expr.zero = 3, expr.shift = 1, expr.exponent = -1;
        if (!objection(schedule, decide(expr, device("h200"))).empty()) continue;
        expect_right(expr, schedule, expr.max_m, ++kept);
      }
    }
    EXPECT_EQ(kept > 0, bits <= 6) << bits;
  }
}

TEST(Tiles, have_as_many_barriers_as_are_needed) {
  // So many that all stages are used again.
  for (const auto& [expr, schedule] : testing::tile_cases(6)) {
    const Program program = lower(decide(expr, device("h200")), schedule);
    EXPECT_EQ(count_barriers(with_barriers(program)), count_barriers(program))
        << to_string(expr) << "; " << to_string(schedule);
  }
}

/// Calls `visit` with the program less each wait, barrier and fence of its products.
void without_each(const Program& program,
                  const std::function<void(const Program&, const Statement&)>& visit) {
  Program changed = program;
  const std::function<void(std::vector<Statement>&)> look = [&](std::vector<Statement>& body) {
    for (std::size_t i = 0; i < body.size(); ++i) {
      const auto& op = body[i].op;
      if (std::holds_alternative<MmaWait>(op) || std::holds_alternative<MatrixFence>(op) ||
          std::holds_alternative<Wait>(op) || std::holds_alternative<Barrier>(op) ||
          std::holds_alternative<SignalInit>(op) || std::holds_alternative<Await>(op) ||
          std::holds_alternative<Arrive>(op)) {
        const Statement dropped = body[i];
        const auto at = body.begin() + static_cast<std::ptrdiff_t>(i);
        body.erase(at);
        visit(changed, dropped);
        body.insert(at, dropped);
      }
      if (auto* loop = std::get_if<For>(&body[i].op)) look(loop->body);
      if (auto* branch = std::get_if<If>(&body[i].op)) look(branch->body);
      if (auto* part = std::get_if<Produce>(&body[i].op)) look(part->body);
    }
  };
  look(changed.body);
}

TEST(Tiles, of_warpgroups_need_every_wait_barrier_and_fence) {
  int dropped = 0;
  auto cases = testing::tile_cases(6);
  for (const char* type : {"uint4,group=128,scale=float16", "int8,channel,scale=float16"}) {
    for (const auto& of_bytes :
         testing::tile_case(testing::kByteShapes[1], ttype(type), Scalar::f16, Reduction::none,
                            Route::bytes, false, 6, true, Scalar::s8)) {
      cases.push_back(of_bytes);
      for (const auto& each : testing::with_producers({of_bytes})) cases.push_back(each);
    }
  }
  for (const auto& rounded : testing::tile_case(
           testing::kRoundedShapes[0], ttype("uint4,group=32,scale=float16"), Scalar::f16,
           Reduction::none, Route::multiply_add, false, 6, true, {}, ScalePlace::rounded)) {
    cases.push_back(rounded);
    for (const auto& each : testing::with_producers({rounded})) cases.push_back(each);
  }
  for (auto& [expr, schedule] : cases) {
    if (!schedule.warpgroups || schedule.reduction == Reduction::ordered) continue;
    expr.max_m = std::int64_t{schedule.tokens} * schedule.token_tiles;  // sums reach everywhere
    const Program program = lower(decide(expr, device("h200")), schedule);
    const auto data = LinearCase::integers(expr, expr.max_m, 1);
    without_each(program, [&, &schedule = schedule](const Program& mutant, const Statement& s) {
      ++dropped;
      EXPECT_THROW(data.run(mutant, schedule), InternalError)
          << "without " << to_string(program, s) << "\n"
          << to_string(schedule) << "\n"
          << to_string(mutant);
    });
  }
  EXPECT_GT(dropped, 250);
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
  const std::string of_warpgroups =
      "tile 128x128x128, token tiles 2, warps 8x1, warpgroups, k-tiles 32, stages 3, none, "
      "multiply_add, 1 per multiprocessor";
  ASSERT_TRUE(tile_schedule_of(of_warpgroups));
  EXPECT_TRUE(tile_schedule_of(of_warpgroups)->warpgroups);
  EXPECT_EQ(to_string(*tile_schedule_of(of_warpgroups)), of_warpgroups);
  EXPECT_EQ(schedule_of("tile 256x64x0128, warps 8x1, k-tiles 16, stages 4, cluster, multiply_add, "
                        "1 per multiprocessor"),
            std::nullopt);
}

}  // namespace
}  // namespace ladder
