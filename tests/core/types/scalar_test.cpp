// SPDX-License-Identifier: Apache-2.0
#include "types/scalar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <map>

#include "base/error.h"

namespace ladder {
namespace {

TEST(Scalar, is_found_by_its_name_and_by_its_element) {
  for (const ScalarRow& row : kScalars) {
    EXPECT_EQ(scalar_called(row.name), row.scalar);
    if (row.element.empty()) {
      EXPECT_THROW(element_of(row.scalar), InternalError) << row.name;
      continue;
    }
    EXPECT_EQ(scalar_of(row.element), row.scalar);
    EXPECT_EQ(&element_of(row.scalar), &element(row.element));
    EXPECT_EQ(element_of(row.scalar).bits, bits_of(row.scalar)) << row.name;
  }
  // "" is what has no element, which is not one of that name.
  for (const char* none : {"", "f16", "float6_e3m2", "uint4"}) {
    EXPECT_EQ(scalar_of(none), std::nullopt) << none;
  }
  EXPECT_EQ(scalar_called("float16"), std::nullopt);
}

// Bits above a number's own are those of its neighbour in a word.
TEST(Scalar, reads_no_bits_but_its_own) {
  for (const Scalar scalar :
       {Scalar::f16, Scalar::bf16, Scalar::e8m0, Scalar::e4m3, Scalar::e4m3fnuz, Scalar::s8}) {
    const std::uint32_t one = to_bits(scalar, 1);
    EXPECT_EQ(to_number(scalar, one | ~0u << bits_of(scalar)), 1) << name_of(scalar);
  }
}

TEST(Scalar, every_16_bit_number_survives_a_round_trip) {
  for (Scalar scalar : {Scalar::f16, Scalar::bf16}) {
    for (std::uint32_t bits = 0; bits < 1u << 16; ++bits) {
      const double number = to_number(scalar, bits);
      if (std::isnan(number)) continue;
      ASSERT_EQ(to_bits(scalar, number), bits) << name_of(scalar);
    }
  }
}

TEST(Scalar, a_number_between_two_rounds_to_the_nearer_and_a_tie_to_the_even_code) {
  for (Scalar scalar : {Scalar::f16, Scalar::bf16}) {
    const std::uint32_t infinity = scalar == Scalar::f16 ? 0x7c00 : 0x7f80;
    for (std::uint32_t bits = 0; bits + 1 < infinity; bits += 3) {
      const double low = to_number(scalar, bits), high = to_number(scalar, bits + 1);
      EXPECT_EQ(to_bits(scalar, low + (high - low) / 4), bits);
      EXPECT_EQ(to_bits(scalar, high - (high - low) / 4), bits + 1);
      EXPECT_EQ(to_bits(scalar, (low + high) / 2), bits + (bits & 1));
    }
    EXPECT_EQ(to_bits(scalar, 1e300), infinity);
  }
}

TEST(Scalar, the_nearest_code_is_that_of_a_number_between_two_ties_to_even_and_saturates) {
  for (const Scalar scalar : {Scalar::s8, Scalar::e4m3}) {
    std::map<float, std::uint32_t> codes;  // by number, in order
    for (std::uint32_t code = 0; code < 256; ++code) {
      const auto number = static_cast<float>(to_number(scalar, code));
      if (std::isnan(number)) continue;
      EXPECT_EQ(nearest_code(scalar, number), code) << name_of(scalar);
      if (code != 0x80 || scalar == Scalar::s8) codes[number] = code;
    }
    EXPECT_EQ(codes.size(), scalar == Scalar::s8 ? 256U : 253U);
    for (auto at = codes.begin(); std::next(at) != codes.end(); ++at) {
      const auto [low, code] = *at;
      const auto [high, next] = *std::next(at);
      const float middle = (low + high) / 2;
      const auto number = [&](float x) { return to_number(scalar, nearest_code(scalar, x)); };
      EXPECT_EQ(number(middle), code % 2 == 0 ? low : high) << middle;
      EXPECT_EQ(number(std::nextafter(middle, -1e9f)), low);
      EXPECT_EQ(number(std::nextafter(middle, 1e9f)), high);
    }
    for (const float beyond : {1.01f, 3.0f, 1e30f, INFINITY}) {
      EXPECT_EQ(nearest_code(scalar, codes.rbegin()->first * beyond), codes.rbegin()->second);
      EXPECT_EQ(nearest_code(scalar, codes.begin()->first * beyond), codes.begin()->second);
    }
  }
  EXPECT_EQ(nearest_code(Scalar::s8, NAN), 0U);
  EXPECT_TRUE(std::isnan(to_number(Scalar::e4m3, nearest_code(Scalar::e4m3, NAN))));
  EXPECT_EQ(nearest_code(Scalar::e4m3, -0.0f), 0x80U);
}

TEST(Scalar, a_code_inside_the_window_is_linear) {
  for (Scalar scalar : {Scalar::f16, Scalar::bf16}) {
    for (std::uint32_t code = 0; code < 1u << linear_window(scalar); ++code) {
      ASSERT_EQ(to_number(scalar, code), std::ldexp(code, linear_exponent(scalar)));
    }
  }
}

}  // namespace
}  // namespace ladder
