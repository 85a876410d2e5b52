// SPDX-License-Identifier: Apache-2.0
#include "bounds/of_problem.h"

#include <gtest/gtest.h>

#include "bounds/lower_bound.h"
#include "bounds/matmul.h"
#include "expr/constructors.h"

namespace ladder::bounds {
namespace {

TEST(EinsumOf, a_linear_layer_is_a_matmul_with_the_bytes_of_its_formats) {
  Problem problem = linear_of(ttype("uint4,group=128,scale=float16"), 4096, 1024, Scalar::bf16, 16);
  const double weight = 4 / 8.0 + 2.0 / 128;
  const Einsum wanted = matmul(16, 4096, 1024, {{2, 2}, {weight, weight, 0.5}, {2, 2}});
  EXPECT_EQ(algorithmic_minimum(einsum_of(problem)), algorithmic_minimum(wanted));
  EXPECT_EQ(algorithmic_minimum(einsum_of(problem)), least_bytes(problem, 16));
  for (const double buffer : {1e3, 1e5, 1e7}) {
    EXPECT_EQ(lower_bound(einsum_of(problem), buffer, 1), lower_bound(wanted, buffer, 1));
  }
  problem.round_x(Scalar::s8), problem.widen_y();
  EXPECT_EQ(algorithmic_minimum(einsum_of(problem)), least_bytes(problem, 16));
  const auto shape = matmul_shape(einsum_of(problem));
  ASSERT_TRUE(shape.has_value());
  EXPECT_EQ(shape->a.store_bytes, 1);
  EXPECT_EQ(shape->c.store_bytes, 4);
}

TEST(EinsumOf, a_batch_and_experts_is_repeated) {
  const TType type = ttype("uint4,group=32,scale=float16");
  for (const Problem& problem : {batched_of(type, 6, 64, 256, Scalar::f16, 8),
                                 experts_of(type, 64, 256, Scalar::f16, 8, {6, 1, 1 << 15})}) {
    const auto shape = matmul_shape(einsum_of(problem));
    ASSERT_TRUE(shape.has_value());
    EXPECT_EQ(shape->repeats, 6);
    EXPECT_EQ(shape->m, 8);
    EXPECT_EQ(algorithmic_minimum(einsum_of(problem)), least_bytes(problem, 8));
  }
}

// An image is smaller than its columns: that is what a convolution need not move.
TEST(EinsumOf, a_convolution_is_one_of_its_image) {
  const Convolution conv{
      .batch = 2, .in_channels = 16, .out_channels = 32, .height = 14, .width = 14, .kernel = 3};
  const Einsum einsum = einsum_of(convolution_of(conv, ttype("uint4"), Scalar::f16));
  EXPECT_EQ(iterations(einsum), 2 * 12 * 12 * 32 * 9 * 16);
  EXPECT_EQ(algorithmic_minimum(einsum),
            2.0 * (2 * 14 * 14 * 16) + 0.5 * (32 * 9 * 16) + 2.0 * (2 * 12 * 12 * 32));
}

}  // namespace
}  // namespace ladder::bounds
