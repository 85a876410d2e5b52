// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels through the interpreter: exact on integers, whatever the shape of the tile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "integer_layer.h"
#include "pipelines/linear/objection.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/passes.h"
#include "program/slips.h"
#include "program/tile_cases.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;
using ::testing::ThrowsMessage;

void expect_right(const Problem& problem, const TileSchedule& schedule, std::int64_t m,
                  unsigned seed) {
  const Decisions decisions = decide(problem, device("h200"));
  const Program program = lower(decisions, schedule);
  ASSERT_NO_THROW(verify(program, device("h200").shared_per_block_bytes))
      << to_string(problem) << "; " << to_string(schedule);
  EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
  const auto data = LinearCase::integers(problem, m, seed);
  const auto y = data.run(program, schedule);
  const auto wanted = data.exact();
  const auto reference = evaluate(problem, data.data);
  const bool rounded = decoding_error(problem) > 0 || (problem.weight.element != nullptr &&
                                                       problem.weight.element->exponent_bits > 4);
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (rounded && std::fabs(reference.y[i]) > data.largest()) continue;
    if (rounded) {
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i))
          << to_string(problem) << "; " << to_string(schedule) << "; y[" << i << "]";
    } else {
      ASSERT_EQ(y[i], wanted[i]) << to_string(problem) << "; " << to_string(schedule) << "; y[" << i
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
  for (const auto& [problem, schedule] : cases) {
    expect_right(problem, schedule, problem.m, ++seed);
    expect_right(problem, schedule, 1 + seed % problem.m, seed);
  }
}

// Groups of four tiles of 256 tokens: the second has a token, or one tile that ends at once.
TEST(Tiles, of_tokens_in_groups_are_exact_and_end_at_once_without_tokens) {
  constexpr std::array<int, 7> kShape = {64, 256, 64, 4, 1, 8, 2};
  const auto cases = testing::tile_case(kShape, ttype("uint4,channel,scale=float16"), Scalar::f16,
                                        Reduction::none, Route::multiply_add, false, 2, true);
  ASSERT_EQ(cases.size(), 1U);
  for (const auto& [problem, schedule] : cases) {
    EXPECT_EQ(grid_of(schedule, problem).together, 4);
    const Program program = lower(decide(problem, device("h200")), schedule);
    for (const std::int64_t m : {std::int64_t{300}, std::int64_t{1025}, problem.m}) {
      expect_right(problem, schedule, m, static_cast<unsigned>(m));
    }
    // Blocks without tokens would read none, and write none: that they end shows in their text.
    EXPECT_THAT(to_string(program), HasSubstr("blocks from token "));
    Program endless = program;
    endless.first_token.reset();
    const auto data = LinearCase::integers(problem, 300, 1);
    EXPECT_EQ(data.run(endless, schedule), data.run(program, schedule));
    endless.first_token = Affine::of(kSplit);
    EXPECT_THAT([&] { verify(endless, device("h200").shared_per_block_bytes); },
                ThrowsMessage<InternalError>(HasSubstr("begin at different tokens")));
    endless.first_token = Affine::of(kTile) + Affine(-1);
    EXPECT_THAT([&] { verify(endless, device("h200").shared_per_block_bytes); },
                ThrowsMessage<InternalError>(HasSubstr("begins before the first token")));
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
          for (auto& [problem, schedule] : testing::tile_case(
                   shape, ttype(GetParam()), activation, reduction, route, false, 3, warpgroups)) {
            ++kept[warpgroups];
            expect_right(problem, schedule, problem.m, seed);
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

/// A type, and what x is rounded to.
class TilesOfBytes : public ::testing::TestWithParam<std::pair<const char*, Scalar>> {};

TEST_P(TilesOfBytes, are_exact) {
  const TType& type = ttype(GetParam().first);
  const Scalar x = GetParam().second;
  // Floats may have values so far apart that float32 rounds their sums.
  const bool exact_in_f32 =
      type.element->encoding != Encoding::floating || type.element->exponent_bits <= 3;
  unsigned seed = 0, kept[2] = {}, of_wide[2] = {};
  const auto run = [&](const auto& shapes, bool warpgroups) {
    for (const auto& shape : shapes) {
      const auto reduction = static_cast<Reduction>(++seed % 3);
      const auto activation = seed % 2 == 0 ? Scalar::f16 : Scalar::bf16;
      for (auto& [problem, schedule] : testing::tile_case(shape, type, activation, reduction,
                                                          Route::bytes, false, 3, warpgroups, x)) {
        ++kept[warpgroups];
        problem.set_bias(seed % 2 == 0);
        problem.widen_y(seed % 4 < 2 && exact_in_f32);
        ++of_wide[problem.wide_y()];
        expect_right(problem, schedule, 1 + seed * 7 % problem.m, seed);
        expect_right(problem, schedule, problem.m, seed);
      }
    }
  };
  run(testing::kTileShapes, false);
  run(testing::kByteShapes, true);
  EXPECT_GE(kept[false], 2U);
  EXPECT_GE(kept[true], 2U);
  EXPECT_GE(of_wide[true], exact_in_f32 ? 2U : 0U);
}

template <std::size_t count>
auto beside(const char* const (&types)[count], Scalar x) {
  std::vector<std::pair<const char*, Scalar>> out;
  for (const char* type : types) out.emplace_back(type, x);
  return ::testing::ValuesIn(out);
}
constexpr auto kCase = [](const auto& info) { return "case_" + std::to_string(info.index); };
INSTANTIATE_TEST_SUITE_P(Integers, TilesOfBytes, beside(testing::kIntegersOfBytes, Scalar::s8),
                         kCase);
INSTANTIATE_TEST_SUITE_P(Floats, TilesOfBytes, beside(testing::kFloatsOfBytes, Scalar::e4m3),
                         kCase);
INSTANTIATE_TEST_SUITE_P(Wholes, TilesOfBytes, beside(testing::kWholesOfBytes, Scalar::e4m3),
                         kCase);

// As of a table of values c - 1.5: of 7 bits and more the zero point in the byte's unit may be no
// whole number.
TEST(Tiles, of_bytes_with_a_zero_point_between_two_codes_are_exact_or_refused) {
  for (const auto& [x, most_bits] : {std::pair{Scalar::s8, 6}, std::pair{Scalar::e4m3, 3}}) {
    for (int bits = 1; bits <= 8; ++bits) {
      unsigned kept = 0;
      for (const auto& shape : testing::kByteShapes) {
        for (auto [problem, schedule] :
             testing::tile_case(shape, ttype("uint2,group=128,scale=float16"), Scalar::f16,
                                Reduction::none, Route::bytes, false, 3, true, x)) {
          testing::set_integers(problem, bits, 3, 1, -1);
          if (!objection(schedule, decide(problem, device("h200"))).empty()) continue;
          expect_right(problem, schedule, problem.m, ++kept);
        }
      }
      EXPECT_EQ(kept > 0, bits <= most_bits) << bits << " beside " << name_of(x);
    }
  }
}

// What e4m3 holds of integers is all that is taken.
TEST(Tiles, of_integers_that_e4m3_does_not_hold_are_refused_with_the_reason) {
  const auto why = [](const char* type, int zero = -1) {
    Problem problem = linear_of(ttype(type), 128, 512, Scalar::f16, 32);
    problem.round_x(Scalar::e4m3);
    if (zero >= 0) testing::set_integers(problem, problem.weight.bits, zero);
    return code_objection(Route::bytes, ScalePlace::usual, decide(problem, device("h200")));
  };
  EXPECT_EQ(why("uint4,channel,scale=float16"), "");
  EXPECT_EQ(why("uint4,group=128,scale=float16", 16), "");
  EXPECT_EQ(why("int5,channel,scale=float16"), "");
  EXPECT_EQ(why("uint5,channel,scale=float16"),
            "codes of 5 bits are up to 31 from their zero point, and e4m3 has whole numbers up to "
            "16");
  EXPECT_EQ(why("uint5,channel,scale=float16", 17),
            "codes of 5 bits are up to 17 from their zero point, and e4m3 has whole numbers up to "
            "16");
  EXPECT_THAT(why("int8,channel,scale=float16"), ::testing::HasSubstr("up to 128 from"));
  EXPECT_THAT(why("uint5,group=128,scale=float16,zero=integer"),
              ::testing::HasSubstr("up to 32 from"));
  for (const char* zero : {"original", "rescale"}) {
    EXPECT_EQ(why(("uint4,group=128,scale=float16,zero=" + std::string(zero)).c_str()),
              "zero points that are no whole numbers beside sums of e4m3");
  }
}

// Each slip in how integers become e4m3 shows, in the numbers or to the verifier.
TEST(Tiles, of_integers_in_e4m3_show_every_slip) {
  const auto caught = [](const char* type, const std::function<void(UnpackBytes&)>& slip) {
    const auto cases =
        testing::tile_case(testing::kByteShapes[0], ttype(type), Scalar::f16, Reduction::none,
                           Route::bytes, false, 3, true, Scalar::e4m3);
    const auto& [problem, schedule] = cases.at(0);
    Program program = lower(decide(problem, device("h200")), schedule);
    testing::for_each_op<UnpackBytes>(program.body, slip);
    return testing::objection_to(program, schedule, LinearCase::integers(problem, problem.m));
  };
  const char* constant = "int4,group=128,scale=float16";
  const char* stored = "uint4,group=128,scale=float16,zero=integer";
  EXPECT_EQ(caught(constant, [](UnpackBytes&) {}), "");
  EXPECT_EQ(caught(constant, [](UnpackBytes& i) { i.zero = 7; }), "wrong numbers");
  EXPECT_EQ(caught(constant, [](UnpackBytes& i) { i.zero = 0; }), "wrong numbers");
  EXPECT_THAT(caught(constant, [](UnpackBytes& i) { i.mantissa_bits = 2; }),
              ::testing::HasSubstr("a zero point in bytes of e4m3"));
  EXPECT_EQ(caught(constant, [](UnpackBytes& i) { i.step = 0; }), "wrong numbers");
  EXPECT_EQ(caught(stored, [](UnpackBytes&) {}), "");
  EXPECT_EQ(caught(stored, [](UnpackBytes& i) { i.zeros = -1; }), "wrong numbers");
  EXPECT_EQ(caught("uint2,group=128,scale=float16", [](UnpackBytes& i) { i.shift = 1; }),
            "wrong numbers");
}

TEST(Tiles, have_as_many_barriers_as_are_needed) {
  // So many that all stages are used again.
  for (const auto& [problem, schedule] : testing::tile_cases(6)) {
    const Program program = lower(decide(problem, device("h200")), schedule);
    EXPECT_EQ(count_barriers(with_barriers(program)), count_barriers(program))
        << to_string(problem) << "; " << to_string(schedule);
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
  const auto parts = testing::in_parts(
      testing::tile_case(testing::kPartShapes[0], ttype("float8_e4m3,channel,scale=float16"),
                         Scalar::f16, Reduction::none, Route::bytes, false, 6, true, Scalar::e4m3));
  ASSERT_FALSE(parts.empty());
  cases.insert(cases.end(), parts.begin(), parts.end());
  for (const auto& each : testing::with_producers(parts)) cases.push_back(each);
  for (const auto& rounded : testing::tile_case(
           testing::kRoundedShapes[0], ttype("uint4,group=32,scale=float16"), Scalar::f16,
           Reduction::none, Route::multiply_add, false, 6, true, {}, ScalePlace::rounded)) {
    cases.push_back(rounded);
    for (const auto& each : testing::with_producers({rounded})) cases.push_back(each);
  }
  for (auto& [problem, schedule] : cases) {
    if (!schedule.warpgroups || schedule.reduction == Reduction::ordered) continue;
    problem.m = std::int64_t{schedule.tokens} * schedule.token_tiles;  // sums reach everywhere
    const Program program = lower(decide(problem, device("h200")), schedule);
    const auto data = LinearCase::integers(problem, problem.m, 1);
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
  for (const auto& [problem, schedule] : testing::tile_cases()) {
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
