// SPDX-License-Identifier: Apache-2.0
//
// Operators as problems: what each constructor says, and that it computes the operator.
#include "expr/constructors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/device.h"
#include "expr/reference.h"
#include "schedule/decisions.h"

namespace ladder {
namespace {

using ::testing::ThrowsMessage;

const TType kF16{&element("float16")};

const Convolution kWindows{.batch = 2,
                           .in_channels = 3,
                           .out_channels = 5,
                           .height = 6,
                           .width = 5,
                           .kernel = 3,
                           .stride = 2,
                           .padding = 1};

/// Small numbers that sum exactly.
std::vector<std::uint32_t> numbers(std::int64_t count) {
  std::vector<std::uint32_t> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(to_bits(Scalar::f16, static_cast<int>(i * 7 % 11) - 5));
  }
  return out;
}

std::int64_t elements_of(const Access& access) {
  std::int64_t out = 1;
  for (const auto extent : access.shape) out *= extent;
  return out;
}

/// `problem` computes what `expr` says of the same bits.
void expect_computes(const Problem& problem, const TensorExpr& expr) {
  ProblemData data;
  data.x = numbers(elements_of(expr.a));
  std::vector<double> x, w;
  for (const auto bits : data.x) x.push_back(to_number(Scalar::f16, bits));
  for (std::int64_t i = 0; i < elements_of(expr.b); ++i) {
    data.codes.push_back(static_cast<std::uint8_t>(i * 5 % 16));
    w.push_back(value_of(problem.weight, data.codes.back()));
  }
  EXPECT_EQ(evaluate(problem, data).y, evaluate(expr, x, w));
}

TEST(Constructors, of_products_are_the_problems_of_their_expressions) {
  const TType type = ttype("uint4,group=32,scale=float16");
  const OperatorTypes types{kF16, type, kF16};
  EXPECT_EQ(normalise(linear_expr(8, 64, 256, types)), linear_of(type, 64, 256, Scalar::f16, 8));
  EXPECT_EQ(normalise(batched_matmul_expr(3, 8, 64, 256, types)),
            batched_of(type, 3, 64, 256, Scalar::f16, 8));
  for (const Problem& problem :
       {linear_of(type, 64, 256, Scalar::f16, 1), batched_of(type, 3, 64, 256, Scalar::f16, 8),
        convolution_of(kWindows, ttype("uint4"), Scalar::f16)}) {
    EXPECT_EQ(normalise(tensor_expr(problem)), problem) << to_string(problem);
  }
}

TEST(Constructors, compute_their_operators) {
  const TType type = ttype("uint4,zero=midpoint");
  const OperatorTypes types{kF16, type, kF16};
  expect_computes(linear_of(type, 5, 24, Scalar::f16, 3), linear_expr(3, 5, 24, types));
  expect_computes(batched_of(type, 3, 5, 24, Scalar::f16, 2),
                  batched_matmul_expr(3, 2, 5, 24, types));
  expect_computes(convolution_of(kWindows, type, Scalar::f16), convolution_nhwc(kWindows, types));
}

TEST(Constructors, of_a_convolution_say_how_x_is_read) {
  const Problem problem = convolution_of(kWindows, ttype("uint4"), Scalar::f16);
  EXPECT_EQ(
      to_string(problem),
      "y[m<=18, n=5] f16 = sum k=27: x[m, k] of windows 3x3 of 6x5x3, stride 2x2, padding 1x1, "
      "f16 * (u4[n, k] - 0)");
  Problem other = problem;
  other.k = 28;
  EXPECT_THAT([&] { check(other); },
              ThrowsMessage<InvalidArgument>("k is 28, and a window has 27"));
  // A window of one element is a product of matrices.
  const Convolution point{.batch = 2, .in_channels = 3, .out_channels = 5, .height = 6, .width = 5};
  EXPECT_EQ(convolution_of(point, ttype("uint4"), Scalar::f16),
            linear_of(ttype("uint4"), 5, 3, Scalar::f16, 60));
  // Channels first it is one of transposed tensors.
  const auto first = normalise(convolution_nchw(point, {kF16, ttype("uint4"), kF16}));
  EXPECT_TRUE(std::holds_alternative<ImageToColumn>(first.rows));
}

TEST(Constructors, of_a_batch_of_convolutions_keep_the_groups) {
  Convolution groups = kWindows;
  groups.in_channels = 6, groups.out_channels = 10, groups.groups = 2;
  const Problem problem = convolution_of(groups, ttype("uint4"), Scalar::f16);
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.n, 5);
  EXPECT_EQ(problem.k, 27);
}

TEST(Constructors, of_formats_that_programs_do_not_compute_with_are_refused) {
  EXPECT_THAT(
      [] {
        normalise(linear_expr(8, 64, 256, {ttype("float6_e3m2"), kF16, kF16}));
      },
      ThrowsMessage<Unsupported>("a is of float6_e3m2, which programs do not compute with"));
}

TEST(Decide, refuses_operators_that_have_no_kernels_and_says_so) {
  const auto refused = [](const Problem& problem) {
    return [problem] { decide(problem, device("h200")); };
  };
  const TType type = ttype("uint4,group=32,scale=float16");
  EXPECT_NO_THROW(refused(batched_of(type, 3, 64, 256, Scalar::f16, 8))());
  EXPECT_NO_THROW(refused(convolution_of(kWindows, ttype("uint4"), Scalar::f16))());
  Convolution groups = kWindows;
  groups.in_channels = 6, groups.out_channels = 10, groups.groups = 2;
  EXPECT_THAT(refused(convolution_of(groups, ttype("uint4"), Scalar::f16)),
              ThrowsMessage<Unsupported>(
                  "kernels read rows, or the windows of one group of channels-last images"));
  Problem batch = convolution_of(kWindows, ttype("uint4"), Scalar::f16);
  batch.batch = 2;
  EXPECT_THAT(refused(batch),
              ThrowsMessage<Unsupported>("no kernel reads windows for a batch of 2"));
  EXPECT_THAT(refused(linear_of(ttype("float16"), 64, 256, Scalar::f16, 8)),
              ThrowsMessage<Unsupported>("float16 has more than 8 bits"));
  EXPECT_NO_THROW(refused(experts_of(type, 64, 256, Scalar::f16, 8, {4, 1, 1 << 15}))());
}

}  // namespace
}  // namespace ladder
