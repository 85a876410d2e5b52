// SPDX-License-Identifier: Apache-2.0
#include "expr/linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "types/element.h"

namespace ladder {
namespace {

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

TEST(Scalar, a_code_inside_the_window_is_linear) {
  for (Scalar scalar : {Scalar::f16, Scalar::bf16}) {
    for (std::uint32_t code = 0; code < 1u << linear_window(scalar); ++code) {
      ASSERT_EQ(to_number(scalar, code), std::ldexp(code, linear_exponent(scalar)));
    }
  }
}

TEST(Linear, is_printed_as_the_sum_it_is) {
  EXPECT_EQ(to_string(Linear{4, 8, 128, Scalar::f16, 8, 4096, 4096}),
            "y[m<=8, n=4096] f16 = sum k=4096: x[m, k] f16 * s[n, k/128] f16 * (u4[n, k] - 8)");
}

TEST(Linear, moves_codes_scales_activations_and_outputs_once) {
  EXPECT_EQ(least_bytes({4, 8, 128, Scalar::f16, 1, 64, 256}, 1),
            64 * 256 / 2 + 64 * 2 * 2 + (64 + 256) * 2);
}

TEST(Linear, of_rounded_x_is_printed_with_the_scale_of_each_token) {
  Linear expr{4, 8, 128, Scalar::f16, 32, 4096, 4096};
  expr.rounded_x = Scalar::s8;
  EXPECT_NO_THROW(check(expr));
  EXPECT_EQ(to_string(expr),
            "y[m<=32, n=4096] f16 = t[m] f32 * sum k=4096: x[m, k] s8 * s[n, k/128] f16 * "
            "(u4[n, k] - 8)");
}

TEST(Linear, moves_rounded_activations_in_a_byte_each) {
  Linear expr{4, 8, 128, Scalar::f16, 32, 64, 256};
  expr.rounded_x = Scalar::s8;
  EXPECT_EQ(least_bytes(expr, 3), 64 * 256 / 2 + 64 * 2 * 2 + 3 * (64 * 2 + 256));
}

TEST(Linear, wide_y_is_printed_and_moved_in_four_bytes) {
  Linear expr{4, 8, 128, Scalar::f16, 32, 64, 256};
  expr.rounded_x = Scalar::s8;
  expr.bias = expr.wide_y = true;
  EXPECT_EQ(to_string(expr),
            "y[m<=32, n=64] f32 = t[m] f32 * sum k=256: x[m, k] s8 * s[n, k/128] f16 * "
            "(u4[n, k] - 8) + bias[n] f32");
  EXPECT_EQ(least_bytes(expr, 3), 64 * 256 / 2 + 64 * 2 * 2 + 3 * (64 * 4 + 256));
  expr.rounded_x.reset();
  EXPECT_THAT([&] { check(expr); },
              testing::ThrowsMessage<InvalidArgument>("y is f32, and x is f16, not of 8 bits"));
}

TEST(Linear, rounded_x_is_refused_where_no_bytes_multiply) {
  using testing::ThrowsMessage;
  const auto refused = [](const auto& change) {
    return [change] {
      Linear expr{4, 8, 128, Scalar::f16, 32, 64, 256};
      expr.rounded_x = Scalar::s8;
      change(expr);
      check(expr);
    };
  };
  const auto floats = [](Linear& expr) { expr.element = &element("float4_e2m1"), expr.zero = 0; };
  EXPECT_THAT(refused([](Linear& expr) { expr.gather = true; }),
              ThrowsMessage<InvalidArgument>("x of 8 bits has its columns in their order"));
  EXPECT_THAT(refused([](Linear& expr) { expr.k = 264; }),
              ThrowsMessage<InvalidArgument>("x of 8 bits has 264 columns, no multiple of 16"));
  EXPECT_THAT(refused(floats),
              ThrowsMessage<InvalidArgument>("x of s8 beside codes that are float4_e2m1"));
  EXPECT_NO_THROW(refused([](Linear& expr) { expr.rounded_x = Scalar::e4m3; })());
  EXPECT_THAT(refused([](Linear& expr) { expr.rounded_x = Scalar::u8; }),
              ThrowsMessage<InvalidArgument>("x is rounded to u8, not s8 or e4m3"));
  EXPECT_NO_THROW(refused([&](Linear& expr) {
    floats(expr);
    expr.rounded_x = Scalar::e4m3;
  })());
}

TEST(Linear, nine_bits_are_refused) {
  EXPECT_THAT(
      [] {
        check(Linear{9, 0, 0, Scalar::f16, 1, 64, 64});
      },
      testing::ThrowsMessage<InvalidArgument>("bits is 9, not 1 to 8"));
}

}  // namespace
}  // namespace ladder
