// SPDX-License-Identifier: Apache-2.0
//
// Which operands hold the scales of a weight: all that are said to do, and none that are not.
#include "expr/decoding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "expr/constructors.h"

namespace ladder {
namespace {

constexpr Scalar kActivations[] = {Scalar::f16, Scalar::bf16};

Problem of(const std::string& type, Scalar activation) {
  return linear_of(ttype(type), 64, 256, activation, 8);
}

/// Every finite number of a format of scales.
std::vector<double> scales_of(Scalar format) {
  std::vector<double> out;
  for (std::uint32_t code = 0; code < 1u << bits_of(format); ++code) {
    const double scale = to_number(format, code);
    if (std::isfinite(scale)) out.push_back(scale);
  }
  return out;
}

bool held(Scalar operand, double value) {
  return to_number(operand, to_bits(operand, value)) == value;
}

/// Whether one product by (scale * factor) makes an operand of each value and scale. Scales that
/// nothing says have a place are tried as they would be: with as much of the factor as they leave.
bool holds_all(const Problem& problem, const Decoding& d) {
  const Scalar operand = problem.activation();
  for (const double scale : scales_of(*problem.weight.scale)) {
    if (!held(operand, scale * d.fields.factor)) return false;
    for (std::uint32_t code = 0; code < 1u << problem.weight.bits; ++code) {
      const double value = value_of(problem.weight, code);
      if (!std::isfinite(value)) continue;
      if (!held(operand, std::ldexp(value, d.exponent) * scale)) return false;
    }
  }
  return true;
}

/// Every floating format of at most 8 bits that becomes operands by masks.
std::vector<std::string> floats(Scalar activation) {
  std::vector<std::string> out;
  for (const Element* element : elements()) {
    if (element->encoding != Encoding::floating || element->bits > 8) continue;
    try {
      const Problem problem =
          of(std::string(element->name) + ",group=16,scale=float8_e4m3", activation);
      if (decoding_kind(problem) == Decoding::Kind::fields) out.emplace_back(element->name);
    } catch (const Unsupported&) {
      // spans more than the operand
    }
  }
  return out;
}

TEST(ScaledOperands, hold_every_product_where_nothing_objects) {
  int count = 0;
  for (Scalar activation : kActivations) {
    for (const auto& element : floats(activation)) {
      for (const char* group : {"group=16", "group=32", "channel"}) {
        for (const char* scale : {"float8_e4m3", "e8m0", "float16", "bfloat16"}) {
          const Problem problem = of(element + "," + group + ",scale=" + scale, activation);
          if (!no_scaled_operands(problem).empty()) continue;
          const Decoding d = decoding_of(problem, ScalePlace::operands);
          EXPECT_TRUE(d.scaled);
          EXPECT_TRUE(holds_all(problem, d)) << to_string(problem);
          ++count;
        }
      }
    }
  }
  EXPECT_GT(count, 0);
}

// Nothing is refused for its numbers that would do: a power of two more or less of the factor, too.
TEST(ScaledOperands, do_not_hold_a_product_where_its_numbers_are_the_objection) {
  int count = 0;
  for (Scalar activation : kActivations) {
    for (const auto& element : floats(activation)) {
      for (const char* scale : {"float8_e4m3", "e8m0", "float16", "bfloat16"}) {
        const Problem problem = of(element + ",group=16,scale=" + scale, activation);
        const auto why = no_scaled_operands(problem);
        if (why.find("products") == std::string::npos) continue;
        const Decoding plain = decoding_of(problem, ScalePlace::sums);
        const int factor = std::ilogb(plain.fields.factor);
        // The fields of f16 are multiplied by nothing else.
        for (int kept = activation == Scalar::f16 ? factor : -126; kept <= factor; ++kept) {
          Decoding d = plain;
          d.fields.factor = std::ldexp(1.0, kept), d.exponent += kept - factor;
          EXPECT_FALSE(holds_all(problem, d))
              << to_string(problem) << ": " << why << "; 2^" << kept;
        }
        ++count;
      }
    }
  }
  EXPECT_GT(count, 0);
}

/// Each finite value times each scale, but for what is beyond the largest number.
bool rounds_none(const Problem& problem) {
  for (std::uint32_t code = 0; code < 1u << problem.weight.bits; ++code) {
    const double value = value_of(problem.weight, code);
    for (int scale = -127; scale <= 127 && std::isfinite(value); ++scale) {
      const double product = std::ldexp(value, scale);
      const double held = to_number(Scalar::bf16, to_bits(Scalar::bf16, product));
      if (std::isfinite(held) && held != product) return false;
    }
  }
  return true;
}

TEST(RoundedOperands, by_powers_of_two_are_exact_where_they_are_said_to_be) {
  int exact = 0, others = 0;
  for (const char* element :
       {"uint1", "int2", "ternary", "uint4", "int8", "float4_e2m1", "float6_e3m2", "float6_e2m3",
        "float5_e2m2", "float8_e4m3", "float8_e5m2", "float7_e4m2", "nf4"}) {
    const Problem problem = of(std::string(element) + ",group=32,scale=e8m0", Scalar::bf16);
    if (!no_rounded_operands(problem).empty()) continue;
    EXPECT_EQ(rounds_no_product(problem), rounds_none(problem)) << element;
    EXPECT_EQ(decoding_error(problem, ScalePlace::rounded) == 0, rounds_no_product(problem))
        << element;
    (rounds_no_product(problem) ? exact : others) += 1;
  }
  EXPECT_GE(exact, 6);
  EXPECT_GE(others, 2);
  EXPECT_FALSE(rounds_no_product(of("uint4,group=32,scale=float16", Scalar::bf16)));
  EXPECT_FALSE(rounds_no_product(of("uint4,group=32,scale=e8m0", Scalar::f16)));
}

TEST(ScaledOperands, are_refused_in_numbers) {
  const auto why = [](const char* type, Scalar activation) {
    return no_scaled_operands(of(type, activation));
  };
  const auto f16 = [&](const char* type) { return why(type, Scalar::f16); };
  const auto bf16 = [&](const char* type) { return why(type, Scalar::bf16); };
  EXPECT_EQ(f16("nvfp4"), "");
  EXPECT_EQ(bf16("nvfp4"), "");
  EXPECT_EQ(f16("uint4,group=128,scale=float16,zero=midpoint"),
            "products of 3 and 11 significant bits do not fit f16's 11");
  EXPECT_EQ(bf16("float6_e2m3,group=32,scale=bfloat16"),
            "products of 4 and 8 significant bits do not fit bf16's 8");
  EXPECT_EQ(f16("nf4,group=64,scale=float16"),
            "products of 24 and 11 significant bits do not fit f16's 11");
  // A factor of one bit leaves the other's, but no exponents.
  EXPECT_EQ(f16("float4_e3m0,group=16,scale=float16"),
            "products from 2^-26 to 2^21, times 2^-12, leave f16's 2^-24 to 2^16");
  EXPECT_EQ(f16("float6_e3m2,group=16,scale=float8_e4m3"),
            "products from 2^-13 to 2^14, times 2^-12, leave f16's 2^-24 to 2^16");
  EXPECT_EQ(bf16("mxfp4"),
            "products from 2^-128 to 2^131, times 2^-126, leave bf16's 2^-133 to 2^128");
  EXPECT_EQ(bf16("float8_e4m3,group=16,scale=float8_e4m3"),
            "scales join no codes of float8_e4m3 that stand for no finite number");
  EXPECT_EQ(f16("int4,group=16,scale=float8_e4m3"),
            "scales join fields of floats as they become operands, not integers or tables");
  EXPECT_EQ(f16("uint4"), "no scales for operands");
  EXPECT_EQ(f16("uint4,group=16,scale=float16,zero=integer"),
            "sums, not operands, meet a stored zero point");
  EXPECT_THROW(decoding_of(of("mxfp4", Scalar::bf16), ScalePlace::operands), Unsupported);
}

TEST(ScaledOperands, are_usual_for_groups_of_one_step_alone) {
  for (Scalar activation : kActivations) {
    for (const auto& [type, usual] : {std::pair{"nvfp4", ScalePlace::operands},
                                      {"float4_e2m1,group=32,scale=float8_e4m3", ScalePlace::sums},
                                      {"float4_e2m1,channel,scale=float8_e4m3", ScalePlace::sums},
                                      {"mxfp4", ScalePlace::sums},
                                      {"uint4,group=16,scale=float8_e4m3", ScalePlace::sums},
                                      {"uint4", ScalePlace::sums}}) {
      const Problem problem = of(type, activation);
      EXPECT_EQ(usual_scale_place(problem), usual) << type;
      EXPECT_EQ(decoding_of(problem).scaled, usual == ScalePlace::operands) << type;
      EXPECT_FALSE(decoding_of(problem, ScalePlace::sums).scaled) << type;
    }
  }
}

}  // namespace
}  // namespace ladder
