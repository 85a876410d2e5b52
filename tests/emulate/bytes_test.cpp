// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels of activations of 8 bits, run on this processor.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "linear_emulated.h"
#include "program/kinds_of_types.h"
#include "program/tile_cases.h"
#include "program/wave_cases.h"

namespace ladder {
namespace {

using testing::Case;
using testing::expect_exact;

// Activations that come as bytes, by single warps and by warpgroups.
TEST(Emulated, kernels_of_bytes_are_exact) {
  std::vector<Case> cases;
  unsigned turn = 0;
  for (const auto& [type, x] : {std::pair{"uint4,group=128,scale=float16", RoundedX(Scalar::s8)},
                                {"ternary,group=128", Scalar::s8},
                                {"int8,channel", Scalar::s8},
                                {"uint3,group=64,zero=integer", Scalar::s8},
                                {testing::kIntegerScales, Scalar::s8},
                                {"ternary,group=64,scale=uint6,scale2=float32", Scalar::s8},
                                {"float8_e4m3,channel", Scalar::e4m3},
                                {"float8_e4m3,channel", {Scalar::e4m3, true}},
                                {"mxfp4", Scalar::e4m3},
                                {"int4,group=128,scale=float16", Scalar::e4m3},
                                {"uint4,group=64,scale=bfloat16,zero=integer", Scalar::e4m3},
                                {"uint4,channel", Scalar::e4m3}}) {
    const auto add = [&](const auto& shape, bool warpgroups) {
      ++turn;
      for (auto& [problem, schedule] : testing::tile_case(
               shape, ttype(type), turn % 2 == 0 ? Scalar::f16 : Scalar::bf16,
               static_cast<Reduction>(turn % 3), Route::bytes, turn % 4 == 0, 4, warpgroups, x)) {
        problem.widen_y(turn % 5 < 2);
        // Codes in, codes out, beside a bias of 16 bits or of 32.
        if (turn % 3 == 1) problem.set_bias(true), problem.quantise_y(x.scalar);
        cases.push_back({problem, schedule});
        for (const auto& [of_parts, parts] : testing::in_parts({{problem, schedule}})) {
          cases.push_back({of_parts, parts});
        }
      }
    };
    for (const auto& shape : testing::kByteShapes) add(shape, true);
    for (std::size_t i = 0; i < 4; ++i) add(testing::kTileShapes[(turn + 3 * i) % 10], false);
  }
  ASSERT_GE(cases.size(), 45U);
  expect_exact(cases, device("h200"));
}

// By the instructions of CDNA 2, of 16 columns, of CDNA 3, of 32, and of CDNA 4, of 64.
/// Two shapes of waves for the type, of x rounded to that; `turn` says which.
void add_waves(std::vector<Case>& cases, const char* type, Scalar x, const Device& on,
               unsigned& turn) {
  for (std::size_t i = 0; i < 2; ++i) {
    ++turn;
    const auto& shape = testing::kWaveShapes[(turn + 4 * i) % testing::kWaveShapes.size()];
    for (auto& [problem, schedule] : testing::wave_case(
             shape, ttype(type), turn % 3 == 0 ? Scalar::bf16 : Scalar::f16,
             turn % 2 == 0 ? Reduction::none : Reduction::ordered, Route::bytes, on, 3, x)) {
      problem.set_bias(turn % 2 == 0);
      problem.widen_y(turn % 4 < 2);
      if (turn % 3 == 1) problem.quantise_y(x);
      cases.push_back({problem, schedule});
    }
  }
}

TEST(Emulated, wave_kernels_of_bytes_are_exact) {
  for (const char* name : {"mi210", "mi300x", "mi355x", "rx7900xtx", "rx9070xt"}) {
    std::vector<Case> cases;
    unsigned turn = 0;
    for (const char* type : testing::kIntegersOfBytes) {
      add_waves(cases, type, Scalar::s8, device(name), turn);
    }
    // A lane of 32 has registers for fewer shapes.
    ASSERT_GE(cases.size(), device(name).warp == 64 ? 20U : 12U) << name;
    expect_exact(cases, device(name), 1);
  }
}

// Of e4m3fnuz on the first, whose numbers are half of those of the others.
TEST(Emulated, wave_kernels_of_float_bytes_are_exact) {
  for (const char* name : {"mi300x", "mi355x", "rx9070xt"}) {
    std::vector<Case> cases;
    unsigned turn = 0;
    const auto add = [&](const char* type) {
      add_waves(cases, type, Scalar::e4m3, device(name), turn);
    };
    for (const char* type : testing::kFloatsOfBytes) add(type);
    for (const char* type : testing::kWholesOfBytes) add(type);
    ASSERT_GE(cases.size(), device(name).warp == 64 ? 25U : 15U) << name;
    expect_exact(cases, device(name), 1);
  }
}

// A kernel of one machine is wrong by powers of two on the other.
TEST(Emulated, float_bytes_of_another_format_are_found) {
  for (const auto& [name, other] : {std::pair{"mi300x", "mi355x"}, std::pair{"mi355x", "mi300x"}}) {
    const auto cases = testing::wave_case(
        testing::kWaveShapes[0], ttype("float6_e3m2,group=64,scale=float16"), Scalar::f16,
        Reduction::none, Route::bytes, device(name), 3, Scalar::e4m3);
    const auto& [problem, schedule] = cases.at(0);
    const Program program = lower(decide(problem, device(name)), schedule);
    const auto kernels = emulate::load({{hip::emit(program), program.name}}, emulate::Language::hip,
                                       device(name).capability);
    const auto data = testing::LinearCase::integers(problem, problem.m, 1);
    const auto objection = [&](const char* machine) {
      return testing::objection_to({problem, schedule}, device(machine), program, kernels[0], data,
                                   1);
    };
    EXPECT_EQ(objection(name), "");
    EXPECT_NE(objection(other), "");
  }
}

}  // namespace
}  // namespace ladder
