// SPDX-License-Identifier: Apache-2.0
//
// Tiles whose operands are values times scales, rounded: products by the dequantised weight.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "pipelines/linear/objection.h"
#include "program/linear_case.h"
#include "program/slips.h"
#include "program/tile_cases.h"
#include "schedule/decoding.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using testing::LinearCase;

constexpr const char* kWhole = "uint4,group=64,scale=uint4,zero=midpoint,scale2=float32:channel";

/// y by weights that are rounded to the format of the activations, and what it is bound by.
Reference by_rounded_weights(const LinearCase& c) {
  const Problem& problem = c.problem;
  const auto groups = problem.groups(), group = problem.group_size();
  const auto rounded = [&](double value) { return to_number(problem.activation(), c.bits(value)); };
  Reference out;
  std::vector<double> weight(problem.n * problem.k);
  for (std::int64_t n = 0; n < problem.n; ++n) {
    for (std::int64_t k = 0; k < problem.k; ++k) {
      const auto of = n * groups + k / group;
      double value = value_of(problem.weight, c.data.codes[n * problem.k + k]);
      if (decoding_error(problem) > 0) value = rounded(value);  // of a table
      if (problem.weight.stored_zero == Zero::integer) value -= c.data.zeros[of];
      value *= to_number(*problem.weight.scale, c.data.scales[of]);
      weight[n * problem.k + k] = rounded(value);
    }
  }
  for (std::int64_t m = 0; m < c.m; ++m) {
    for (std::int64_t n = 0; n < problem.n; ++n) {
      double y = 0, magnitude = 0;
      for (std::int64_t k = 0; k < problem.k; ++k) {
        const auto column = problem.permuted_columns ? c.data.gather[k] : k;
        const double term = to_number(problem.activation(), c.data.x[m * problem.k + column]) *
                            weight[n * problem.k + k];
        y += term, magnitude += std::fabs(term);
      }
      y *= c.data.second_scale(problem, n);
      if (problem.has_bias()) y += to_number(problem.activation(), c.data.bias[n]);
      out.y.push_back(y), out.magnitude.push_back(magnitude);
    }
  }
  return out;
}

/// Cases of a type with scales of the format of the activations, or of its own.
void for_each_case(const std::string& type,
                   const std::function<void(const Problem&, const TileSchedule&)>& use) {
  unsigned turn = 0;
  const auto run = [&](const auto& shapes, bool warpgroups) {
    for (const auto& shape : shapes) {
      const Scalar activation = ++turn % 2 == 0 ? Scalar::f16 : Scalar::bf16;
      const bool own = type.find("scale=") != std::string::npos || type.find(',') == type.npos;
      const std::string scale = activation == Scalar::f16 ? "float16" : "bfloat16";
      const TType& full = ttype(own ? type : type + ",scale=" + scale);
      for (auto& [problem, schedule] :
           testing::tile_case(shape, full, activation, static_cast<Reduction>(turn % 3),
                              Route::multiply_add, false, 3, warpgroups, {}, ScalePlace::rounded)) {
        problem.set_bias(turn % 2 == 0);
        problem.permuted_columns = turn % 4 == 0;
        use(problem, schedule);
      }
    }
  };
  run(testing::kRoundedShapes, true);
  run(testing::kRoundedByWarps, false);
}

class RoundedOperands : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundedOperands, are_exact_where_no_product_is_rounded) {
  unsigned kept = 0;
  for_each_case(GetParam(), [&](const Problem& problem, const TileSchedule& schedule) {
    const Program program = lower(decide(problem, device("h200")), schedule);
    ASSERT_NO_THROW(verify(program, device("h200").shared_per_block_bytes)) << to_string(schedule);
    EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
    const auto c = LinearCase::integers(problem, problem.m, ++kept);
    if (decoding_error(problem) > 0) return;  // of a table
    ASSERT_EQ(c.run(program, schedule), c.exact()) << to_string(problem) << to_string(schedule);
  });
  EXPECT_GE(kept, 2U);
}

TEST_P(RoundedOperands, are_the_dequantised_weight) {
  unsigned kept = 0;
  for_each_case(GetParam(), [&](const Problem& problem, const TileSchedule& schedule) {
    const auto c = LinearCase::reals(problem, std::min<std::int64_t>(problem.m, 9), ++kept);
    const auto y = c.run(lower(decide(problem, device("h200")), schedule), schedule);
    const Reference reference = by_rounded_weights(c);
    for (std::size_t i = 0; i < y.size(); ++i) {
      // No error of a weight is allowed for.
      ASSERT_LE(std::fabs(y[i] - reference.y[i]), c.bound(reference, i, 0))
          << to_string(problem) << "; " << to_string(schedule) << "; y[" << i << "]";
    }
  });
  EXPECT_GE(kept, 2U);
}

INSTANTIATE_TEST_SUITE_P(
    Types, RoundedOperands,
    ::testing::Values("uint1,group=64", "int2,group=32", "ternary,group=128", "uint3,group=128",
                      "uint4,group=128", "uint4,group=64,zero=integer", "int4,group=16",
                      "uint4,group=32,scale=float8_e4m3", "uint5,group=64", "int6,group=128",
                      "uint7,group=32", "uint8,group=64,zero=integer", "nf4,group=64",
                      "float4_e2m1,group=32", "nvfp4", "float6_e3m2,group=128",
                      "float8_e4m3,group=64", "mxfp4", "uint3,group=32,scale=e8m0", kWhole,
                      "uint3,group=128,scale=uint4,zero=midpoint,scale2=float32:channel",
                      "uint2,group=64,scale=uint6,zero=midpoint,scale2=float32",
                      "ternary,group=32,scale=uint5,scale2=float32",
                      "uint4,group=128,scale=uint4,zero=integer,scale2=float32:channel",
                      "int5,group=32,scale=uint3,scale2=float32"),
    [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST(RoundedOperands, without_their_scales_are_caught) {
  for_each_case("int4,group=32", [](const Problem& problem, const TileSchedule& schedule) {
    Program program = lower(decide(problem, device("h200")), schedule);
    testing::for_each_op<ScaleOperand>(program.body, [](ScaleOperand& i) { i.exponent += 1; });
    EXPECT_EQ(testing::objection_to(program, schedule, LinearCase::integers(problem, 9)),
              "wrong numbers");
  });
}

// One multiply-add has code, zero point and scale.
TEST(RoundedOperands, join_integer_scales_that_round_nothing) {
  unsigned kept = 0;
  for_each_case(kWhole, [&](const Problem& problem, const TileSchedule& schedule) {
    const auto after = [&](const std::function<void(Unpack&)>& slip) {
      Program program = lower(decide(problem, device("h200")), schedule);
      testing::for_each_op<ScaleOperand>(program.body, [](ScaleOperand&) { ADD_FAILURE(); });
      testing::for_each_op<Unpack>(program.body, slip);
      return testing::objection_to(program, schedule, LinearCase::integers(problem, 9, ++kept));
    };
    EXPECT_EQ(after([](Unpack& i) { EXPECT_GE(i.scales, 0); }), "");
    EXPECT_EQ(after([](Unpack& i) { i.scales = -1; }), "wrong numbers");
    EXPECT_EQ(after([](Unpack& i) { i.zero += 1; }), "wrong numbers");
    EXPECT_THAT(after([](Unpack& i) { i.group = 99; }), HasSubstr("group 99 of"));
    EXPECT_THAT(after([](Unpack& i) { i.ones = false; }), HasSubstr("not read from ones"));
  });
  EXPECT_GT(kept, 0U);
}

TEST(RoundedOperands, join_integer_scales_only_where_what_is_added_is_a_number) {
  const auto joins = [](const char* type, Scalar activation) {
    return joins_whole_scales(linear_of(ttype(type), 128, 256, activation, 64));
  };
  for (const Scalar activation : {Scalar::f16, Scalar::bf16}) {
    EXPECT_TRUE(joins(kWhole, activation));
    EXPECT_TRUE(joins("int4,group=64,scale=uint4,scale2=float32", activation));
    EXPECT_TRUE(joins("uint3,group=64,scale=uint3,zero=midpoint,scale2=float32", activation));
    // 1 + 2^mantissa bits times 3.
    EXPECT_FALSE(joins("ternary,group=128,scale=uint6,scale2=float32:channel", activation));
    EXPECT_FALSE(joins("uint4,group=128,scale=uint4,zero=integer,scale2=float32", activation));
    EXPECT_FALSE(
        joins("uint4,group=128,scale=float8_e4m3,zero=midpoint,scale2=float32", activation));
    EXPECT_FALSE(joins("uint8,group=64,scale=uint8,zero=midpoint,scale2=float32", activation));
  }
  // 16 times 63 is both, 1024 + 16 times 63 has 12 bits.
  const char* wide = "uint5,group=64,scale=uint6,zero=midpoint,scale2=float32";
  EXPECT_TRUE(rounds_no_product(linear_of(ttype(wide), 128, 256, Scalar::f16, 64)));
  EXPECT_FALSE(joins(wide, Scalar::f16));
  EXPECT_TRUE(joins("uint5,group=64,scale=uint5,zero=midpoint,scale2=float32", Scalar::f16));
  EXPECT_FALSE(joins("uint5,group=64,scale=uint5,zero=midpoint,scale2=float32", Scalar::bf16));
}

TEST(RoundedOperands, are_refused_where_they_would_not_be_the_dequantised_weight) {
  const auto refused = [](const char* type, Scalar activation, std::int64_t m) {
    return code_objection(Route::multiply_add, ScalePlace::rounded,
                          decide(linear_of(ttype(type), 128, 256, activation, m), device("h200")));
  };
  EXPECT_EQ(refused("uint4,group=64,scale=float16", Scalar::f16, 65), "");
  EXPECT_EQ(refused("uint4,group=64,scale=float16", Scalar::f16, 64),
            "operands are rounded from 65 tokens on, not at 64");
  // Powers of two leave the bits of a value.
  EXPECT_EQ(refused("mxint8", Scalar::bf16, 17), "");
  EXPECT_EQ(refused("mxint8", Scalar::bf16, 16),
            "operands are rounded from 17 tokens on, not at 16");
  // So do integers that are few.
  EXPECT_EQ(refused(kWhole, Scalar::bf16, 17), "");
  EXPECT_EQ(refused("uint8,group=64,scale=uint4,scale2=float32", Scalar::bf16, 17),
            "operands are rounded from 65 tokens on, not at 17");
  // One product takes them and the factor of the fields.
  EXPECT_EQ(refused("mxfp4", Scalar::bf16, 1), "");
  // 2^-9 times 2^-127 is less than bfloat16's least number, of a table more bits.
  for (const char* type : {"float8_e4m3,group=32,scale=e8m0", "nf4,group=32,scale=e8m0"}) {
    EXPECT_EQ(refused(type, Scalar::bf16, 17), "operands are rounded from 65 tokens on, not at 17");
  }
  EXPECT_EQ(refused("uint4,group=64,scale=float16", Scalar::bf16, 65), "scales of f16 are no bf16");
  EXPECT_EQ(refused("mxfp4", Scalar::f16, 65), "scales of e8m0 are no f16");
  EXPECT_EQ(refused("uint4", Scalar::f16, 65), "no scales for operands");
  // 448 times 448 in the weight would be infinite, and with a second scale the weight is not.
  EXPECT_EQ(refused("float8_e4m3,group=16,scale=float8_e4m3,scale2=float32", Scalar::f16, 65),
            "products below 229376 are more than f16 holds");
  EXPECT_EQ(refused("float8_e4m3,group=16,scale=float8_e4m3,scale2=float32", Scalar::bf16, 65), "");
  EXPECT_EQ(refused("uint8,group=32,scale=float8_e4m3,zero=integer", Scalar::f16, 65),
            "products below 131072 are more than f16 holds");
  EXPECT_EQ(refused("uint4,group=32,scale=float16,scale2=float32", Scalar::f16, 65),
            "a second scale would meet products that f16 may not hold");
  // Integer scales are not of the weight's magnitude either.
  EXPECT_EQ(refused("float8_e5m2,group=64,scale=uint4,scale2=float32:channel", Scalar::f16, 65),
            "products up to 860160 are more than f16 holds");
  EXPECT_EQ(refused("float8_e4m3,group=64,scale=uint8,scale2=float32", Scalar::f16, 65),
            "products up to 114240 are more than f16 holds");
  EXPECT_EQ(refused("float8_e4m3,group=64,scale=uint8,scale2=float32", Scalar::bf16, 65), "");
  EXPECT_EQ(refused("float8_e4m3,group=64,scale=uint4,scale2=float32", Scalar::f16, 65), "");
  EXPECT_EQ(refused("uint8,group=64,scale=uint8,scale2=float32", Scalar::f16, 65), "");
  EXPECT_EQ(refused("nvfp4", Scalar::f16, 65), "");
  EXPECT_EQ(refused("float6_e5m0,group=32,scale=float16", Scalar::f16, 65),
            "65536 of float6_e5m0 is no f16");
  EXPECT_EQ(refused("uint4,group=64,scale=float16,zero=original", Scalar::f16, 65),
            "sums, not operands, meet a stored zero point that is no integer");
}

}  // namespace
}  // namespace ladder
