// SPDX-License-Identifier: Apache-2.0
//
// Tiles of activations of 8 bits: of the first choices one compiles without spills, for the
// architectures that have such products.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "codegen/cuda/toolchain.h"
#include "compile.h"
#include "expr/constructors.h"
#include "some_kernel.h"
#include "turns.h"

namespace ladder {
namespace {

using testing::expect_a_kernel;

struct Case {
  const char* name;
  const char* type;
  RoundedX x;
};

class TilesOfBytes : public ::testing::TestWithParam<Case> {};

TEST_P(TilesOfBytes, compile_without_spills) {
  const auto& [name, type, x] = GetParam();
  unsigned turn = 0;
  for (const std::string_view target : {"h200", "a100", "l40s", "b200", "rtx5090", "t4"}) {
    if (tile_instruction(x.scalar, device(target)) == nullptr) continue;  // of e4m3, before sm_89
    for (const std::int64_t m : {32, 100, 192, 1024, 4096}) {
      if (target != "h200" && m != 100) continue;
      const bool ragged = ++turn % 2 == 0;
      const bool bf16 = ragged && tile_instruction(Scalar::bf16, device(target)) != nullptr;
      Problem problem = linear_of(ttype(type), ragged ? 1000 : 8192, ragged ? 1040 : 8192,
                                  bf16 ? Scalar::bf16 : Scalar::f16, m);
      problem.set_bias(true);
      problem.round_x(x);
      if (ragged && problem.groups() > 1 && 1040 % problem.group_size() != 0) problem.k = 1024;
      expect_a_kernel(problem, device(target));
      if (m != 100) continue;
      problem.quantise_y(x.scalar);
      expect_a_kernel(problem, device(target));
      problem.quantise_y({}), problem.set_activation(Scalar::f16), problem.widen_y(true);
      expect_a_kernel(problem, device(target));
    }
  }
}

// The largest that the model allows, by the registers of either number of warps.
void expect_tiles_in_parts_without_spills(testing::Turns turns) {
  const Device& h200 = device("h200");
  for (const char* type :
       {"float8_e4m3,channel,scale=float16", "float8_e4m3,group=128,scale=bfloat16",
        "float6_e3m2,group=128,scale=float16", "int4,group=128,scale=float16",
        "uint4,group=128,scale=float16,zero=integer", "mxfp4"}) {
    if (!turns.next()) continue;
    Problem problem = linear_of(ttype(type), 4096, 4096, Scalar::bf16, 4096);
    problem.round_x(Scalar::e4m3);
    const auto decisions = decide(problem, h200);
    int compiled = 0;
    std::set<int> warps;
    for (const TileSchedule& s : tile_space(decisions, true)) {
      if (s.token_parts == 1 || !objection(s, decisions).empty()) continue;
      if (!warps.insert(s.warps_n).second) continue;
      ++compiled;
      const auto binary = cuda::compile(compile(decisions, s).source, h200.architecture);
      EXPECT_EQ(rejection(binary), "") << type << ", " << to_string(s);
    }
    EXPECT_GE(compiled, 1) << type;
  }
}

TEST(TilesInParts, compile_without_spills) {
  expect_tiles_in_parts_without_spills(testing::Turns(3));
}

TEST(DISABLED_WholeTilesInParts, compile_without_spills) {
  expect_tiles_in_parts_without_spills(testing::Turns(1));
}

INSTANTIATE_TEST_SUITE_P(
    Types, TilesOfBytes,
    ::testing::Values(
        Case{"int1", "int1,channel,scale=float16", Scalar::s8},
        Case{"uint3", "uint3,group=128,scale=float16,zero=midpoint", Scalar::s8},
        Case{"uint4", "uint4,group=128,scale=float16,zero=midpoint", Scalar::s8},
        Case{"awq", "uint4,group=128,scale=float16,zero=integer", Scalar::s8},
        Case{"int8", "int8,channel,scale=float32", Scalar::s8},
        Case{"integer_scales", "uint4,group=128,scale=uint4,zero=midpoint,scale2=float32:channel",
             Scalar::s8},
        Case{"narrow_integer_scales",
             "uint3,group=32,scale=uint5,zero=midpoint,scale2=float32:channel", Scalar::s8},
        Case{"float8", "float8_e4m3,channel,scale=float16", Scalar::e4m3},
        Case{"float8_fast", "float8_e4m3,channel,scale=bfloat16", RoundedX(Scalar::e4m3, true)},
        Case{"float6", "float6_e3m2,group=64,scale=float16", Scalar::e4m3},
        Case{"mxfp4", "mxfp4", Scalar::e4m3},
        Case{"int4_e4m3", "int4,group=128,scale=bfloat16", Scalar::e4m3},
        Case{"uint4_e4m3", "uint4,channel,scale=float16,zero=midpoint", Scalar::e4m3},
        Case{"narrow_e4m3", "int4,group=32,scale=float16", Scalar::e4m3},
        Case{"awq_e4m3", "uint4,group=64,scale=float16,zero=integer", Scalar::e4m3},
        Case{"ternary_e4m3", "ternary,group=128,scale=float16", Scalar::e4m3}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ladder
