// SPDX-License-Identifier: Apache-2.0
#include "expr/tensor_expr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expr/iterators.h"
#include "expr/resnet18.h"

namespace ladder {
namespace {

const OperatorTypes kTypes{ttype("float16"), ttype("float16"), ttype("float16")};

/// Small integers, so that every sum is exact and any slip changes one.
std::vector<double> numbers(std::int64_t count, int seed) {
  std::vector<double> out(count);
  std::uint32_t state = 12345 + seed;
  for (double& x : out) {
    state = state * 1664525 + 1013904223;
    x = static_cast<double>(state >> 24) - 128;
  }
  return out;
}
std::int64_t size_of(const Access& access) {
  std::int64_t n = 1;
  for (auto extent : access.shape) n *= extent;
  return n;
}

/// The matmul of the views, scattered to the output.
std::vector<double> by_matmul(const MatmulForm& form, const std::vector<double>& a,
                              const std::vector<double>& b) {
  std::vector<double> out(size_of(form.expr.out), -1e9);
  for (std::int64_t s = 0; s < form.s.extent; ++s) {
    for (std::int64_t i = 0; i < form.i.extent; ++i) {
      for (std::int64_t j = 0; j < form.j.extent; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < form.k.extent; ++k) {
          const auto from_a = place_in_a(form, s, i, k), from_b = place_in_b(form, s, j, k);
          if (from_a >= 0 && from_b >= 0) sum += a[from_a] * b[from_b];
        }
        out[place_in_out(form, s, i, j)] = sum;
      }
    }
  }
  return out;
}

/// A convolution as its definition says it, NHWC.
std::vector<double> direct(const Convolution& conv, const std::vector<double>& in,
                           const std::vector<double>& weight) {
  const auto oh = conv.out_height(), ow = conv.out_width();
  const auto g = conv.groups, c = conv.in_channels / g, f = conv.out_channels / g;
  std::vector<double> out;
  for (std::int64_t n = 0; n < conv.batch; ++n)
    for (std::int64_t h = 0; h < oh; ++h)
      for (std::int64_t w = 0; w < ow; ++w)
        for (std::int64_t channel = 0; channel < g * f; ++channel) {
          double sum = 0;
          for (std::int64_t y = 0; y < conv.kernel; ++y)
            for (std::int64_t x = 0; x < conv.kernel; ++x)
              for (std::int64_t i = 0; i < c; ++i) {
                const auto row = h * conv.stride + y * conv.dilation - conv.padding;
                const auto column = w * conv.stride + x * conv.dilation - conv.padding;
                if (row < 0 || row >= conv.height || column < 0 || column >= conv.width) continue;
                sum += in[((n * conv.height + row) * conv.width + column) * conv.in_channels +
                          channel / f * c + i] *
                       weight[((channel * conv.kernel + y) * conv.kernel + x) * c + i];
              }
          out.push_back(sum);
        }
  return out;
}

TEST(MatmulForm, of_the_eleven_convolutions_of_resnet18_has_their_sizes_and_maps) {
  for (const ConvolutionLayer& layer : kResNet18) {
    const auto form = matmul_form(convolution_nhwc(convolution(layer, 128), kTypes));
    EXPECT_EQ(form.s.extent, 1);
    EXPECT_EQ(form.i.extent, layer.i);
    EXPECT_EQ(form.j.extent, layer.j);
    EXPECT_EQ(form.k.extent, layer.k);
    using testing::ElementsAre;
    EXPECT_THAT(form.i.iterators, ElementsAre(0, 1, 2));  // n, h, w
    EXPECT_THAT(form.j.iterators, ElementsAre(3));        // f
    EXPECT_THAT(form.k.iterators, ElementsAre(4, 5, 6));  // y, x, c
    EXPECT_TRUE(view_is_permutation(form, form.expr.b));
    EXPECT_FALSE(view_is_permutation(form, form.expr.a));
  }
}

TEST(MatmulForm, of_the_eleven_convolutions_of_resnet18_computes_the_convolution) {
  for (ConvolutionLayer layer : kResNet18) {
    layer.in = std::min<std::int64_t>(layer.in, 3);
    layer.out = std::min<std::int64_t>(layer.out, 4);
    layer.size = std::min<std::int64_t>(layer.size, 9);
    const auto conv = convolution(layer, 2);
    const auto form = matmul_form(convolution_nhwc(conv, kTypes));
    const auto in = numbers(size_of(form.expr.a), 1), weight = numbers(size_of(form.expr.b), 2);
    const auto expected = direct(conv, in, weight);
    EXPECT_EQ(evaluate(form.expr, in, weight), expected);
    EXPECT_EQ(by_matmul(form, in, weight), expected);
  }
}

TEST(MatmulForm, of_a_convolution_with_dilation_and_groups_computes_it) {
  const Convolution conv{.batch = 2,
                         .in_channels = 6,
                         .out_channels = 4,
                         .height = 7,
                         .width = 5,
                         .kernel = 3,
                         .stride = 2,
                         .padding = 2,
                         .dilation = 2,
                         .groups = 2};
  const auto form = matmul_form(convolution_nhwc(conv, kTypes));
  EXPECT_EQ(form.s.extent, 2);
  EXPECT_EQ(form.j.extent, 2);
  const auto in = numbers(size_of(form.expr.a), 3), weight = numbers(size_of(form.expr.b), 4);
  EXPECT_EQ(by_matmul(form, in, weight), direct(conv, in, weight));
}

TEST(MatmulForm, of_channels_first_fuses_in_order_of_declaration) {
  const Convolution conv{.batch = 2,
                         .in_channels = 3,
                         .out_channels = 4,
                         .height = 6,
                         .width = 5,
                         .kernel = 3,
                         .padding = 1};
  const auto form = matmul_form(convolution_nchw(conv, kTypes));
  EXPECT_EQ(form.k.iterators, (std::vector<int>{4, 5, 6}));  // c, y, x
  EXPECT_TRUE(view_is_permutation(form, form.expr.b));
  const auto in = numbers(size_of(form.expr.a), 5), weight = numbers(size_of(form.expr.b), 6);
  EXPECT_EQ(by_matmul(form, in, weight), evaluate(form.expr, in, weight));
}

TEST(MatmulForm, of_matmuls_side_by_side_and_of_a_linear_layer_is_the_operator) {
  for (const auto& expr : {batched_matmul_expr(3, 4, 5, 6, kTypes), linear_expr(4, 5, 6, kTypes),
                           linear_expr(1, 5, 6, kTypes), linear_expr(4, 1, 1, kTypes)}) {
    const auto form = matmul_form(expr);
    EXPECT_TRUE(view_is_permutation(form, form.expr.a));
    EXPECT_TRUE(view_is_permutation(form, form.expr.b));
    const auto a = numbers(size_of(expr.a), 7), b = numbers(size_of(expr.b), 8);
    EXPECT_EQ(by_matmul(form, a, b), evaluate(expr, a, b)) << to_string(form);
  }
}

TEST(MatmulForm, a_depthwise_convolution_has_no_columns) {
  const Convolution conv{.batch = 2,
                         .in_channels = 4,
                         .out_channels = 4,
                         .height = 5,
                         .width = 5,
                         .kernel = 3,
                         .groups = 4};
  auto expr = convolution_nhwc(conv, kTypes);
  // One output channel a group is J of extent 1; without the iterator there is no J.
  EXPECT_EQ(matmul_form(expr).j.extent, 1);
  expr.iterators.erase(expr.iterators.begin() + 4);
  const auto shift = [](Access& access) {
    std::erase_if(access.indices, [](const AffineIndex& index) {
      return index.terms.size() == 1 && index.terms[0].iterator == 4;
    });
    for (auto& index : access.indices) {
      for (auto& term : index.terms) term.iterator -= term.iterator > 4;
    }
  };
  for (Access* access : {&expr.a, &expr.b, &expr.out}) shift(*access);
  expr.b.shape.erase(expr.b.shape.begin() + 1);
  expr.out.shape.pop_back();
  EXPECT_THAT([&] { matmul_form(expr); },
              testing::ThrowsMessage<Unsupported>(testing::HasSubstr("without J")));
}

TEST(IteratorKind, a_sum_over_one_element_is_a_sum_and_a_row_of_one_is_trivial) {
  const auto kinds = classify(linear_expr(1, 5, 1, kTypes));
  EXPECT_EQ(kinds, (std::vector<IteratorKind>{IteratorKind::T, IteratorKind::J, IteratorKind::K}));
}

TEST(IteratorKind, a_sum_over_one_operand_alone_is_refused_by_name) {
  auto expr = linear_expr(2, 3, 4, kTypes);
  expr.b.indices[1] = {};
  EXPECT_THAT([&] { classify(expr); },
              testing::ThrowsMessage<Unsupported>(testing::HasSubstr("iterator k, a reduction")));
}

TEST(TensorExpr, says_what_it_computes) {
  const OperatorTypes types{ttype("float16"), ttype("uint4,group=128,scale=float16"),
                            ttype("float16")};
  EXPECT_EQ(to_string(linear_expr(16, 4096, 4096, types)),
            "out[m, n] float16 = sum(k) a[m, k] float16 * w[n, k] " + to_string(types.b) +
                "; m<16; n<4096; k<4096");
}

TEST(TensorExpr, an_output_that_is_not_written_once_is_refused) {
  auto expr = linear_expr(2, 3, 4, kTypes);
  expr.out.indices[0].terms[0].iterator = 1;
  EXPECT_THROW(check(expr), InvalidArgument);
}

}  // namespace
}  // namespace ladder
