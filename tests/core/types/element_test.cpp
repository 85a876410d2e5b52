// SPDX-License-Identifier: Apache-2.0
//
// The values that the specifications print, typed in by hand.
#include "types/element.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "types/oracle.h"

namespace ladder {
namespace {

using ::ladder::testing::kInfinity;
using ::ladder::testing::kNan;
using ::ladder::testing::narrow_elements;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<double> values_of(std::string_view name, std::uint32_t first, std::uint32_t last) {
  std::vector<double> values;
  for (std::uint32_t code = first; code <= last; ++code)
    values.push_back(decode(element(name), code));
  return values;
}

double value(std::string_view name, std::uint32_t code) { return decode(element(name), code); }

TEST(Float4E2M1, has_the_sixteen_values_of_the_ocp_specification) {
  EXPECT_THAT(values_of("float4_e2m1", 0, 7), ElementsAre(0, 0.5, 1, 1.5, 2, 3, 4, 6));
  EXPECT_THAT(values_of("float4_e2m1", 8, 15), ElementsAre(-0.0, -0.5, -1, -1.5, -2, -3, -4, -6));
  EXPECT_TRUE(std::signbit(value("float4_e2m1", 8)));
}

TEST(Float6E3M2, has_the_extremes_of_the_ocp_specification) {
  EXPECT_EQ(value("float6_e3m2", 0b011111), 28.0);
  EXPECT_EQ(value("float6_e3m2", 0b111111), -28.0);
  EXPECT_EQ(value("float6_e3m2", 0b000100), 0.25);
  EXPECT_EQ(value("float6_e3m2", 0b000011), 0.1875);
  EXPECT_EQ(value("float6_e3m2", 0b000001), 0.0625);
}

TEST(Float6E2M3, has_the_extremes_of_the_ocp_specification) {
  EXPECT_EQ(value("float6_e2m3", 0b011111), 7.5);
  EXPECT_EQ(value("float6_e2m3", 0b001000), 1.0);
  EXPECT_EQ(value("float6_e2m3", 0b000111), 0.875);
  EXPECT_EQ(value("float6_e2m3", 0b000001), 0.125);
}

TEST(Float8E4M3, has_448_two_nans_and_subnormals_from_two_to_the_minus_nine) {
  EXPECT_EQ(value("float8_e4m3", 0x7e), 448.0);
  EXPECT_EQ(value("float8_e4m3", 0xfe), -448.0);
  EXPECT_EQ(value("float8_e4m3", 0x01), std::ldexp(1.0, -9));
  EXPECT_EQ(value("float8_e4m3", 0x07), std::ldexp(7.0, -9));
  EXPECT_EQ(value("float8_e4m3", 0x08), std::ldexp(1.0, -6));
  EXPECT_EQ(value("float8_e4m3", 0x00), 0.0);
  for (std::uint32_t code = 0; code < 256; ++code)
    EXPECT_EQ(std::isnan(value("float8_e4m3", code)), code == 0x7f || code == 0xff) << code;
}

TEST(Float8E5M2, has_57344_infinities_and_three_nans_of_each_sign) {
  EXPECT_EQ(value("float8_e5m2", 0x7b), 57344.0);
  EXPECT_EQ(value("float8_e5m2", 0x7c), kInfinity);
  EXPECT_EQ(value("float8_e5m2", 0xfc), -kInfinity);
  EXPECT_EQ(value("float8_e5m2", 0x01), std::ldexp(1.0, -16));
  EXPECT_EQ(value("float8_e5m2", 0x04), std::ldexp(1.0, -14));
  for (std::uint32_t code = 0; code < 256; ++code)
    EXPECT_EQ(std::isnan(value("float8_e5m2", code)), (code & 0x7f) > 0x7c) << code;
}

TEST(Float8Fnuz, has_one_zero_one_nan_and_a_bias_larger_by_one) {
  EXPECT_TRUE(std::isnan(value("float8_e4m3fnuz", 0x80)));
  EXPECT_TRUE(std::isnan(value("float8_e5m2fnuz", 0x80)));
  EXPECT_EQ(value("float8_e4m3fnuz", 0x7f), 240.0);
  EXPECT_EQ(value("float8_e5m2fnuz", 0x7f), 57344.0);
  EXPECT_EQ(value("float8_e4m3fnuz", 0x01), std::ldexp(1.0, -10));
  EXPECT_EQ(value("float8_e5m2fnuz", 0x01), std::ldexp(1.0, -17));
}

TEST(E8M0, is_every_power_of_two_from_minus_127_to_127_and_one_nan) {
  for (std::uint32_t code = 0; code < 255; ++code)
    EXPECT_EQ(value("e8m0", code), std::ldexp(1.0, static_cast<int>(code) - 127));
  EXPECT_TRUE(std::isnan(value("e8m0", 255)));
}

TEST(Nf4, has_the_sixteen_quantiles_of_qlora) {
  const float expected[] = {-1.0f,
                            -0.6961928009986877f,
                            -0.5250730514526367f,
                            -0.39491748809814453f,
                            -0.28444138169288635f,
                            -0.18477343022823334f,
                            -0.09105003625154495f,
                            0.0f,
                            0.07958029955625534f,
                            0.16093020141124725f,
                            0.24611230194568634f,
                            0.33791524171829224f,
                            0.44070982933044434f,
                            0.5626170039176941f,
                            0.7229568362236023f,
                            1.0f};
  for (std::uint32_t code = 0; code < 16; ++code) EXPECT_EQ(value("nf4", code), expected[code]);
}

TEST(BitsandbytesFp4, has_the_eight_magnitudes_of_bitsandbytes_and_their_negatives) {
  const float expected[] = {0.0f, 0.005208333333f, 0.66666667f, 1.0f, 0.33333333f,
                            0.5f, 0.16666667f,     0.25f};
  for (std::uint32_t code = 0; code < 8; ++code) {
    EXPECT_FLOAT_EQ(static_cast<float>(value("fp4", code)), expected[code]) << code;
    EXPECT_EQ(value("fp4", code + 8), -value("fp4", code)) << code;
  }
}

TEST(SmallIntegers, mean_what_binary_and_twos_complement_say) {
  EXPECT_THAT(values_of("int1", 0, 1), ElementsAre(-1, 1));
  EXPECT_THAT(values_of("ternary", 0, 2), ElementsAre(-1, 0, 1));
  EXPECT_THAT(values_of("uint1", 0, 1), ElementsAre(0, 1));
  EXPECT_THAT(values_of("int2", 0, 3), ElementsAre(0, 1, -2, -1));
  EXPECT_THAT(values_of("int3", 0, 7), ElementsAre(0, 1, 2, 3, -4, -3, -2, -1));
  for (int bits = 1; bits <= 8; ++bits) {
    const Element& unsigned_format = element("uint" + std::to_string(bits));
    EXPECT_EQ(max_value(unsigned_format), (1 << bits) - 1);
    EXPECT_EQ(min_value(unsigned_format), 0);
    if (bits == 1) continue;
    const Element& signed_format = element("int" + std::to_string(bits));
    EXPECT_EQ(max_value(signed_format), (1 << (bits - 1)) - 1);
    EXPECT_EQ(min_value(signed_format), -(1 << (bits - 1)));
  }
}

TEST(MxInt8, has_its_point_before_the_last_six_bits) {
  EXPECT_EQ(value("fixed8_6", 0x40), 1.0);
  EXPECT_EQ(value("fixed8_6", 0x7f), 1.984375);
  EXPECT_EQ(value("fixed8_6", 0x80), -2.0);
  EXPECT_EQ(value("fixed8_6", 0xff), -0.015625);
}

TEST(Float16, has_the_extremes_of_ieee_754) {
  EXPECT_EQ(value("float16", 0x7bff), 65504.0);
  EXPECT_EQ(value("float16", 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(value("float16", 0x0400), std::ldexp(1.0, -14));
  EXPECT_EQ(value("float16", 0x3555), 0.333251953125);
  EXPECT_EQ(value("float16", 0x7c00), kInfinity);
  EXPECT_EQ(value("bfloat16", 0x3f80), 1.0);
  EXPECT_EQ(value("bfloat16", 0xc049), -3.140625);
  EXPECT_EQ(value("bfloat16", 0x7f7f), std::ldexp(255.0, 120));
}

TEST(Decode, a_code_too_wide_for_its_type_is_refused_with_both_widths) {
  EXPECT_THAT([] { decode(element("uint4"), 16); },
              ThrowsMessage<InvalidArgument>("code 16 does not fit uint4, which has 4 bits"));
  EXPECT_THAT([] { decode(element("int1"), 2); },
              ThrowsMessage<InvalidArgument>("code 2 does not fit int1, which has 1 bits"));
}

TEST(Decode, the_float32_table_holds_every_value_exactly) {
  for (const Element* e : elements()) {
    if (e->bits > 16) continue;
    const std::vector<float> table = decode_table(*e);
    ASSERT_EQ(table.size(), std::size_t{1} << e->bits);
    for (std::uint32_t code = 0; code < table.size(); ++code) {
      const double exact = decode(*e, code);
      if (std::isnan(exact))
        EXPECT_TRUE(std::isnan(table[code])) << e->name << " " << code;
      else
        EXPECT_EQ(table[code], exact) << e->name << " " << code;
    }
  }
  EXPECT_THAT([] { decode_table(element("float32")); },
              ThrowsMessage<InvalidArgument>(HasSubstr("2^32")));
}

TEST(Extremes, are_the_largest_and_smallest_finite_values_of_any_code) {
  for (const Element* e : narrow_elements()) {
    const testing::Oracle oracle(*e);
    EXPECT_EQ(max_value(*e), oracle.largest()) << e->name;
    EXPECT_EQ(min_value(*e), oracle.smallest()) << e->name;
  }
  EXPECT_EQ(max_value(element("float16")), 65504.0);
  EXPECT_EQ(min_value(element("float16")), -65504.0);
}

TEST(Conversions, are_allowed_only_where_no_value_is_lost) {
  const auto converts = [](std::string_view from, std::string_view to) {
    return converts_exactly(element(from), element(to));
  };
  EXPECT_TRUE(converts("float8_e5m2", "float16"));
  EXPECT_TRUE(converts("float8_e4m3", "float16"));
  EXPECT_TRUE(converts("float8_e4m3", "bfloat16"));
  EXPECT_TRUE(converts("uint8", "bfloat16"));
  EXPECT_TRUE(converts("uint4", "float8_e4m3"));
  EXPECT_TRUE(converts("int4", "int8"));
  EXPECT_TRUE(converts("float16", "float32"));
  EXPECT_TRUE(converts("float4_e2m1", "float6_e2m3"));
  EXPECT_TRUE(converts("ternary", "int2"));
  EXPECT_FALSE(converts("uint8", "float8_e4m3"));
  EXPECT_FALSE(converts("float8_e5m2", "float8_e4m3"));
  EXPECT_FALSE(converts("float8_e4m3", "float8_e5m2"));
  EXPECT_FALSE(converts("bfloat16", "float16"));
  EXPECT_FALSE(converts("float16", "bfloat16"));
  EXPECT_FALSE(converts("uint4", "int4"));
  EXPECT_FALSE(converts("int1", "uint1"));
  EXPECT_FALSE(converts("nf4", "float16"));
  EXPECT_FALSE(converts("e8m0", "float16"));
  EXPECT_FALSE(converts("float32", "float16"));
}

TEST(Conversions, agree_with_the_sets_of_values_of_every_pair) {
  for (const Element* from : narrow_elements())
    for (const Element* to : narrow_elements()) {
      bool every = true;
      for (int code = 0; code < from->code_count(); ++code) {
        const double wanted = decode(*from, static_cast<std::uint32_t>(code));
        bool found = false;
        for (int other = 0; other < to->code_count() && !found; ++other) {
          const double have = decode(*to, static_cast<std::uint32_t>(other));
          found = have == wanted || (std::isnan(have) && std::isnan(wanted));
        }
        every = every && found;
      }
      EXPECT_EQ(converts_exactly(*from, *to), every) << from->name << " to " << to->name;
    }
}

TEST(Conversions, targets_are_listed_narrowest_first_and_begin_with_a_format_as_narrow) {
  for (const Element* from : elements()) {
    const auto targets = exact_targets(*from);
    ASSERT_FALSE(targets.empty()) << from->name;
    for (std::size_t i = 1; i < targets.size(); ++i)
      EXPECT_LE(targets[i - 1]->bits, targets[i]->bits) << from->name;
    EXPECT_THAT(targets, ::testing::Contains(from)) << from->name;
  }
}

}  // namespace
}  // namespace ladder
