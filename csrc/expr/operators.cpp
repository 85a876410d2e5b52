// SPDX-License-Identifier: Apache-2.0
// Operators as tensor expressions.
#include "base/error.h"
#include "expr/tensor_expr.h"

namespace ladder {
namespace {

AffineIndex at(int iterator) { return {{{iterator, 1}}, 0}; }

/// The input row that an output row `out` reads in window row `tap`.
AffineIndex window(int out, int tap, const Convolution& conv) {
  return {{{out, conv.stride}, {tap, conv.dilation}}, -conv.padding};
}

void check(const Convolution& conv) {
  LADDER_REQUIRE(conv.groups >= 1 && conv.in_channels % conv.groups == 0 &&
                     conv.out_channels % conv.groups == 0,
                 conv.groups, " groups do not divide ", conv.in_channels, " and ",
                 conv.out_channels, " channels");
  LADDER_REQUIRE(conv.stride >= 1 && conv.dilation >= 1 && conv.kernel >= 1, "kernel ", conv.kernel,
                 ", stride ", conv.stride, ", dilation ", conv.dilation);
  LADDER_REQUIRE(conv.padding >= 0, "padding ", conv.padding);
  LADDER_REQUIRE(conv.height + 2 * conv.padding > conv.dilation * (conv.kernel - 1) &&
                     conv.width + 2 * conv.padding > conv.dilation * (conv.kernel - 1),
                 "a window of ", conv.kernel, " does not fit ", conv.height, " x ", conv.width);
}

}  // namespace

TensorExpr linear_expr(std::int64_t m, std::int64_t n, std::int64_t k, const OperatorTypes& types) {
  TensorExpr expr{{{"m", m}, {"n", n}, {"k", k, true}},
                  {"a", types.a, {m, k}, {at(0), at(2)}},
                  {"w", types.b, {n, k}, {at(1), at(2)}},
                  {"out", types.out, {m, n}, {at(0), at(1)}}};
  ladder::check(expr);
  return expr;
}

TensorExpr batched_matmul_expr(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k,
                               const OperatorTypes& types) {
  TensorExpr expr{{{"s", batch}, {"m", m}, {"n", n}, {"k", k, true}},
                  {"a", types.a, {batch, m, k}, {at(0), at(1), at(3)}},
                  {"w", types.b, {batch, n, k}, {at(0), at(2), at(3)}},
                  {"out", types.out, {batch, m, n}, {at(0), at(1), at(2)}}};
  ladder::check(expr);
  return expr;
}

TensorExpr convolution_nhwc(const Convolution& conv, const OperatorTypes& types) {
  check(conv);
  const auto g = conv.groups, c = conv.in_channels / g, f = conv.out_channels / g;
  const auto oh = conv.out_height(), ow = conv.out_width();
  // Iterators: n h w g f, y x c. One group needs no iterator of its own.
  if (g == 1) {
    TensorExpr expr{
        {{"n", conv.batch},
         {"h", oh},
         {"w", ow},
         {"f", f},
         {"y", conv.kernel, true},
         {"x", conv.kernel, true},
         {"c", c, true}},
        {"in",
         types.a,
         {conv.batch, conv.height, conv.width, c},
         {at(0), window(1, 4, conv), window(2, 5, conv), at(6)}},
        {"weight", types.b, {f, conv.kernel, conv.kernel, c}, {at(3), at(4), at(5), at(6)}},
        {"out", types.out, {conv.batch, oh, ow, f}, {at(0), at(1), at(2), at(3)}}};
    ladder::check(expr);
    return expr;
  }
  TensorExpr expr{
      {{"n", conv.batch},
       {"h", oh},
       {"w", ow},
       {"g", g},
       {"f", f},
       {"y", conv.kernel, true},
       {"x", conv.kernel, true},
       {"c", c, true}},
      {"in",
       types.a,
       {conv.batch, conv.height, conv.width, g, c},
       {at(0), window(1, 5, conv), window(2, 6, conv), at(3), at(7)}},
      {"weight", types.b, {g, f, conv.kernel, conv.kernel, c}, {at(3), at(4), at(5), at(6), at(7)}},
      {"out", types.out, {conv.batch, oh, ow, g, f}, {at(0), at(1), at(2), at(3), at(4)}}};
  ladder::check(expr);
  return expr;
}

TensorExpr convolution_nchw(const Convolution& conv, const OperatorTypes& types) {
  check(conv);
  LADDER_REQUIRE(conv.groups == 1, conv.groups, " groups in N C H W");
  const auto c = conv.in_channels, f = conv.out_channels;
  const auto oh = conv.out_height(), ow = conv.out_width();
  TensorExpr expr{
      {{"n", conv.batch},
       {"f", f},
       {"h", oh},
       {"w", ow},
       {"c", c, true},
       {"y", conv.kernel, true},
       {"x", conv.kernel, true}},
      {"in",
       types.a,
       {conv.batch, c, conv.height, conv.width},
       {at(0), at(4), window(2, 5, conv), window(3, 6, conv)}},
      {"weight", types.b, {f, c, conv.kernel, conv.kernel}, {at(1), at(4), at(5), at(6)}},
      {"out", types.out, {conv.batch, f, oh, ow}, {at(0), at(1), at(2), at(3)}}};
  ladder::check(expr);
  return expr;
}

}  // namespace ladder
