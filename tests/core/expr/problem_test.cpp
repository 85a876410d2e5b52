// SPDX-License-Identifier: Apache-2.0
#include "expr/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "integer_layer.h"
#include "types/element.h"

namespace ladder {
namespace {

TEST(Problem, is_printed_as_the_sum_it_is) {
  EXPECT_EQ(to_string(testing::integer_layer(4, 8, 128, Scalar::f16, 8, 4096, 4096)),
            "y[m<=8, n=4096] f16 = sum k=4096: x[m, k] f16 * s[n, k/128] f16 * (u4[n, k] - 8)");
}

TEST(Problem, moves_codes_scales_activations_and_outputs_once) {
  EXPECT_EQ(least_bytes(testing::integer_layer(4, 8, 128, Scalar::f16, 1, 64, 256), 1),
            64 * 256 / 2 + 64 * 2 * 2 + (64 + 256) * 2);
}

TEST(Problem, of_rounded_x_is_printed_with_the_scale_of_each_token) {
  Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 32, 4096, 4096);
  problem.round_x(Scalar::s8);
  EXPECT_NO_THROW(check(problem));
  EXPECT_EQ(to_string(problem),
            "y[m<=32, n=4096] f16 = t[m] f32 * sum k=4096: x[m, k] s8 * s[n, k/128] f16 * "
            "(u4[n, k] - 8)");
}

TEST(Problem, of_fast_sums_says_so_and_promotes_none) {
  Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 32, 4096, 4096);
  problem.round_x(Scalar::e4m3);
  EXPECT_TRUE(problem.promotes_sums());
  problem.round_x(RoundedX(Scalar::e4m3, true));
  EXPECT_NO_THROW(check(problem));
  EXPECT_FALSE(problem.promotes_sums());
  EXPECT_EQ(to_string(problem),
            "y[m<=32, n=4096] f16 = t[m] f32 * fast sum k=4096: x[m, k] e4m3 * s[n, k/128] f16 * "
            "(u4[n, k] - 8)");
  problem.formats.x = Scalar::s8;
  EXPECT_THAT([&] { check(problem); }, ::testing::ThrowsMessage<InvalidArgument>(
                                           "x is s8, not e4m3, and its sums are fast"));
}

TEST(Problem, moves_rounded_activations_in_a_byte_each) {
  Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 32, 64, 256);
  problem.round_x(Scalar::s8);
  EXPECT_EQ(least_bytes(problem, 3), 64 * 256 / 2 + 64 * 2 * 2 + 3 * (64 * 2 + 256));
}

TEST(Problem, wide_y_is_printed_and_moved_in_four_bytes) {
  Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 32, 64, 256);
  problem.round_x(Scalar::s8);
  problem.set_bias(true), problem.widen_y();
  EXPECT_EQ(to_string(problem),
            "y[m<=32, n=64] f32 = t[m] f32 * sum k=256: x[m, k] s8 * s[n, k/128] f16 * "
            "(u4[n, k] - 8) + bias[n] f32");
  EXPECT_EQ(least_bytes(problem, 3), 64 * 256 / 2 + 64 * 2 * 2 + 3 * (64 * 4 + 256));
  problem.formats.x = Scalar::f16;
  EXPECT_THAT([&] { check(problem); },
              ::testing::ThrowsMessage<InvalidArgument>("y is f32, and x is f16, not of 8 bits"));
}

TEST(Problem, rounded_x_is_refused_where_no_bytes_multiply) {
  using ::testing::ThrowsMessage;
  const auto refused = [](const auto& change) {
    return [change] {
      Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 32, 64, 256);
      problem.round_x(Scalar::s8);
      change(problem);
      check(problem);
    };
  };
  const auto floats = [](Problem& problem) {
    testing::set_element(problem, element("float4_e2m1"));
  };
  EXPECT_THAT(refused([](Problem& problem) { problem.permuted_columns = true; }),
              ThrowsMessage<InvalidArgument>("x of 8 bits has its columns in their order"));
  EXPECT_THAT(refused([](Problem& problem) { problem.k = 264; }),
              ThrowsMessage<InvalidArgument>("x of 8 bits has 264 columns, no multiple of 16"));
  EXPECT_THAT(refused(floats),
              ThrowsMessage<InvalidArgument>("x of s8 beside codes that are float4_e2m1"));
  EXPECT_NO_THROW(refused([](Problem& problem) { problem.round_x(Scalar::e4m3); })());
  EXPECT_THAT(refused([](Problem& problem) { problem.round_x(Scalar::u8); }),
              ThrowsMessage<InvalidArgument>("x is u8, not f16, bf16, s8 or e4m3"));
  EXPECT_NO_THROW(refused([&](Problem& problem) {
    floats(problem);
    problem.round_x(Scalar::e4m3);
  })());
}

TEST(Problem, without_meaning_is_refused_with_the_values) {
  using ::testing::ThrowsMessage;
  const auto refused = [](const auto& change) {
    return [change] {
      Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 32, 64, 256);
      change(problem);
      check(problem);
    };
  };
  EXPECT_THAT(refused([](Problem& p) { p.m = 0; }),
              ThrowsMessage<InvalidArgument>("m is 0, not positive"));
  EXPECT_THAT(refused([](Problem& p) { p.batch = 0; }),
              ThrowsMessage<InvalidArgument>("batch is 0, not positive"));
  EXPECT_THAT(refused([](Problem& p) { p.epilogue = {SecondScale{}}; }),
              ThrowsMessage<InvalidArgument>("a second scale is given, and the weight is "
                                             "uint4,group=128,scale=float16,zero=midpoint"));
  EXPECT_THAT(refused([](Problem& p) { p.weight = Weight(ttype("nvfp4")); }),
              ThrowsMessage<InvalidArgument>("a second scale is missing, and the weight is nvfp4"));
  EXPECT_THAT(refused([](Problem& p) { p.epilogue = {ScaleOfToken{}}; }),
              ThrowsMessage<InvalidArgument>("x is f16, and its tokens have scales"));
  EXPECT_THAT(refused([](Problem& p) { p.formats.x = Scalar::s32; }),
              ThrowsMessage<InvalidArgument>("x is s32, not f16, bf16, s8 or e4m3"));
  EXPECT_THAT(refused([](Problem& p) { p.weight = Weight(ttype("e8m0")); }),
              ThrowsMessage<InvalidArgument>(
                  "type \"e8m0\": e8m0 is a scale format, not an element format"));
}

// Each has a meaning, and decide() says why there is no kernel.
TEST(Problem, that_no_kernel_multiplies_says_why) {
  const auto why = [](const auto& change) {
    Problem problem = testing::integer_layer(4, 8, 128, Scalar::f16, 32, 64, 256);
    problem.set_bias(true);
    change(problem);
    EXPECT_NO_THROW(check(problem));
    return refusal(problem);
  };
  EXPECT_EQ(why([](Problem&) {}), "");
  EXPECT_EQ(why([](Problem& p) { p.weight = Weight(ttype("float16")); }),
            "float16 has more than 8 bits");
  EXPECT_EQ(why([](Problem& p) { p.batch = 3; }), "");
  EXPECT_EQ(why([](Problem& p) { p.formats.sum = Scalar::f16; }),
            "kernels add up in f32, not in f16");
  EXPECT_EQ(why([](Problem& p) { p.formats.bias = Scalar::f32; }), "the bias is f32, and y f16");
  EXPECT_EQ(why([](Problem& p) { p.formats.y = p.formats.bias = Scalar::bf16; }),
            "x is f16, and y bf16");
  EXPECT_EQ(why([](Problem& p) { p.formats.x = Scalar::s8; }),
            "x of s8 without scales of its tokens");
  EXPECT_EQ(
      why([](Problem& p) {
        p.round_x(Scalar::s8);
        std::ranges::reverse(p.epilogue);
      }),
      "kernels take a second scale, scales of tokens, a bias, a gate, an activation function, a "
      "residual and the scale of y in this order");
}

TEST(Problem, has_its_steps_in_the_order_of_kernels_whatever_was_set_first) {
  Problem problem = linear_of(ttype("nvfp4"), 64, 256, Scalar::bf16, 8);
  problem.set_bias(true);
  problem.round_x(Scalar::e4m3);
  EXPECT_EQ(problem.epilogue, (std::vector<EpilogueStep>{SecondScale{}, ScaleOfToken{}, Bias{}}));
  EXPECT_EQ(problem.activation(), Scalar::bf16);
  problem.round_x(std::nullopt), problem.set_bias(false);
  EXPECT_EQ(problem, linear_of(ttype("nvfp4"), 64, 256, Scalar::bf16, 8));
}

}  // namespace
}  // namespace ladder
