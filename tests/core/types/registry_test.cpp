// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <limits>

#include "base/error.h"
#include "types/element.h"
#include "types/table.h"
#include "types/ttype.h"

namespace ladder {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

using Values = std::vector<double>;

auto refused(const std::string& part, const std::string& other = "") {
  return ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(part), HasSubstr(other)));
}

TEST(Names, find_the_same_row_under_every_alias) {
  EXPECT_EQ(&element("e4m3_float8"), &element("float8_e4m3"));
  EXPECT_EQ(&element("e5m2_float8"), &element("float8_e5m2"));
  EXPECT_EQ(&element("fp4_e2m1"), &element("float4_e2m1"));
  EXPECT_EQ(&element("half"), &element("float16"));
  for (const Alias& alias : aliases()) {
    EXPECT_EQ(element(alias.name).name, alias.element);
    EXPECT_THAT(elements(), Not(Contains(Field(&Element::name, alias.name)))) << alias.name;
  }
  EXPECT_EQ(find_element("float4"), nullptr) << "bitsandbytes' fp4 or OCP's e2m1: nobody can tell";
}

TEST(Names, that_people_type_are_found_in_letters_of_any_case) {
  EXPECT_EQ(&element("FP8"), &element("float8_e4m3"));
  EXPECT_EQ(&element("E4M3"), &element("float8_e4m3"));
  EXPECT_EQ(&element("F8_E5M2"), &element("float8_e5m2"));
  EXPECT_EQ(&element("fp6"), &element("float6_e3m2"));
  for (const Element& row : builtin_elements()) {
    std::string name(row.name);
    for (char& c : name) c = static_cast<char>(std::toupper(c));
    EXPECT_EQ(&element(name), &row);
  }
  EXPECT_EQ(to_string(parse_ttype("MXFP4")), "mxfp4");
  EXPECT_EQ(to_string(parse_ttype("mxfp8")), "mxfp8_e4m3");
  EXPECT_EQ(to_string(parse_ttype("MXFP6")), "mxfp6_e3m2");
  EXPECT_EQ(to_string(parse_ttype("NF4,group=64,scale=FP16")), "nf4,group=64,scale=float16");
  EXPECT_EQ(find_element(std::string(100, 'X')), nullptr);
}

TEST(Names, that_are_unknown_are_refused_with_the_nearest_known_ones) {
  EXPECT_THAT([] { element("uint44"); }, refused("unknown type \"uint44\"", "uint4"));
  EXPECT_THAT([] { element(""); }, refused("unknown type \"\""));
}

TEST(Names, of_all_formats_are_different_and_in_order) {
  const auto all = elements();
  for (std::size_t i = 1; i < all.size(); ++i) EXPECT_LT(all[i - 1]->name, all[i]->name);
}

TEST(RegisterTable, makes_a_format_that_decodes_encodes_and_is_listed) {
  const Element& e = register_table("test_thirds", 2, Values{0, 3, -1.5, 9});
  EXPECT_EQ(&element("test_thirds"), &e);
  EXPECT_THAT(elements(), Contains(&e));
  EXPECT_EQ(decode(e, 2), -1.5);
  EXPECT_EQ(encode(e, 100), 3u);
  EXPECT_EQ(encode(e, 1.5), 0u) << "a tie takes the lower code";
  EXPECT_EQ(to_string(parse_ttype("test_thirds,group=32,scale=float16")),
            "test_thirds,group=32,scale=float16");
  EXPECT_TRUE(converts_exactly(e, element("float16")));
  EXPECT_FALSE(converts_exactly(e, element("int8")));
}

TEST(RegisterTable, rounds_values_to_float32) {
  const Element& e = register_table("test_tenth", 1, Values{0.1, 1});
  EXPECT_EQ(decode(e, 0), static_cast<double>(0.1f));
}

TEST(RegisterTable, accepts_the_same_meaning_twice_and_gives_the_same_row) {
  const Element& first = register_table("test_twice", 1, Values{-2, 2});
  EXPECT_EQ(&register_table("test_twice", 1, Values{-2, 2}), &first);
  EXPECT_THAT(
      [] {
        register_table("test_twice", 1, Values{-2, 3});
      },
      refused("type test_twice already means something else"));
  EXPECT_THAT(
      [] {
        register_table("test_twice", 2, Values{-2, 2, 3, 4});
      },
      refused("1 bits", "the new meaning has 2 bits"));
}

TEST(RegisterTable, refuses_the_names_of_built_in_formats_aliases_and_block_types) {
  EXPECT_THAT(
      [] {
        register_table("uint1", 1, Values{0, 1});
      },
      refused("type uint1 already means something else"));
  EXPECT_THAT(
      [] {
        register_table("half", 1, Values{0, 0.5});
      },
      refused("already means something else"));
  EXPECT_THAT(
      [] {
        register_table("mxfp4", 1, Values{0, 1});
      },
      refused("type mxfp4 already means something else"));
  for (const char* name : {"NF4", "E4M3", "MXFP4", "mxfp8"})
    EXPECT_THAT(
        [=] {
          register_table(name, 1, Values{0, 1});
        },
        refused("already means something else"))
        << name;
  EXPECT_EQ(&register_table("int1", 1, Values{-1, 1}), &element("int1"));
}

TEST(RegisterTable, refuses_names_that_a_spelling_could_not_hold) {
  for (const char* name : {"", "3bit", "a,b", "a=b", "a b", "_a", "\xc3\xa9"})
    EXPECT_THAT([=] { register_table(name, 1, Values{0, 1}); }, refused("type name")) << name;
  EXPECT_THAT([] { register_table(std::string(65, 'a'), 1, Values{0, 1}); }, refused("64 at most"));
}

TEST(RegisterTable, refuses_counts_repetitions_and_values_that_are_not_finite) {
  EXPECT_THAT(
      [] {
        register_table("test_bad", 3, Values{1, 2});
      },
      refused("type test_bad has 2 values; 3 bits need 8"));
  EXPECT_THAT([] { register_table("test_bad", 0, Values{1}); }, refused("0 bits"));
  EXPECT_THAT([] { register_table("test_bad", 9, Values(512)); }, refused("9 bits"));
  EXPECT_THAT(
      [] {
        register_table("test_bad", 1, Values{2, 2});
      },
      refused("codes 0 and 1 share the value 2"));
  EXPECT_THAT([] { register_table("test_bad", 1, Values{0.0, -0.0}); }, refused("share the value"));
  EXPECT_THAT(
      [] {
        register_table("test_bad", 1, Values{1, std::nan("")});
      },
      refused("value nan of code 1 is not a finite float32"));
  EXPECT_THAT(
      [] {
        register_table("test_bad", 1, Values{1e39, 1});
      },
      refused("value 1e+39 of code 0"));
  EXPECT_EQ(find_element("test_bad"), nullptr) << "a refused format leaves nothing behind";
}

TEST(RegisterFloat, derives_ieee_values_from_the_widths) {
  const Element& e = register_float("test_e3m1", 3, 1, Specials::ieee);
  EXPECT_EQ(e.bits, 5);
  EXPECT_EQ(max_value(e), 12.0);
  EXPECT_EQ(decode(e, 0b01110), std::numeric_limits<double>::infinity());
  EXPECT_EQ(decode(e, 1), 0.125);
  const Element& shifted = register_float("test_e3m1_b5", 3, 1, Specials::none, 5);
  EXPECT_EQ(decode(shifted, 1), std::ldexp(1.0, -5));
}

TEST(RegisterFloat, refuses_widths_and_biases_out_of_range) {
  EXPECT_THAT([] { register_float("test_bad", 0, 3, Specials::none); }, refused("0 exponent bits"));
  EXPECT_THAT([] { register_float("test_bad", 8, 0, Specials::none); }, refused("8 exponent bits"));
  EXPECT_THAT([] { register_float("test_bad", 1, 0, Specials::none); }, refused("has 2 bits"));
  EXPECT_THAT([] { register_float("test_bad", 5, 3, Specials::none); }, refused("has 9 bits"));
  EXPECT_THAT([] { register_float("test_bad", 3, -1, Specials::none); }, refused("-1"));
  EXPECT_THAT([] { register_float("test_bad", 4, 0, Specials::ieee); },
              refused("0 mantissa bits; infinity and nan of ieee need 1"));
  EXPECT_THAT([] { register_float("test_bad", 3, 2, Specials::none, 128); }, refused("bias 128"));
  EXPECT_THAT([] { register_float("test_bad", 3, 2, Specials::none, -200); }, refused("bias -200"));
  EXPECT_THAT([] { register_float("float8_e4m3", 4, 3, Specials::none); },
              refused("already means something else"));
  EXPECT_EQ(find_element("test_bad"), nullptr);
}

}  // namespace
}  // namespace ladder
