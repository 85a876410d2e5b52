// SPDX-License-Identifier: Apache-2.0
#include "expr/constructors.h"

#include <utility>

#include "base/error.h"
#include "base/integers.h"

namespace ladder {
namespace {

Scalar format_of(const Access& access) {
  const auto scalar = scalar_of(*access.type.element);
  if (!scalar || access.type != TType{access.type.element}) {
    fail<Unsupported>(access.name, " is of ", to_string(access.type),
                      ", which programs do not compute with");
  }
  return *scalar;
}

/// Whether the view [s, row, k] of the tensor is the tensor, row-major.
bool is_row_major(const MatmulForm& form, const Access& access, const Fused& rows,
                  const Fused& columns) {
  std::vector<int> order = form.s.iterators;
  order.insert(order.end(), rows.iterators.begin(), rows.iterators.end());
  order.insert(order.end(), columns.iterators.begin(), columns.iterators.end());
  std::vector<int> dimensions;
  for (const AffineIndex& index : access.indices) {
    for (const IndexTerm& term : index.terms) {
      // An iterator of one value adds nothing, wherever it stands.
      if (form.expr.iterators[term.iterator].extent > 1) dimensions.push_back(term.iterator);
    }
  }
  std::erase_if(order, [&](int each) { return form.expr.iterators[each].extent == 1; });
  return view_is_permutation(form, access) && dimensions == order;
}

}  // namespace

Problem linear_of(const TType& type, std::int64_t n, std::int64_t k, Scalar activation,
                  std::int64_t m) {
  Problem out{.weight = Weight(type),
              .m = m,
              .n = n,
              .k = k,
              .formats = {.x = activation, .y = activation, .bias = activation}};
  if (type.has_scale_of_sums()) out.epilogue.emplace_back(SecondScale{});
  return out;
}

Problem batched_of(const TType& type, std::int64_t batch, std::int64_t n, std::int64_t k,
                   Scalar activation, std::int64_t m) {
  Problem out = linear_of(type, n, k, activation, m);
  out.batch = batch;
  return out;
}

Problem experts_of(const TType& type, std::int64_t n, std::int64_t k, Scalar activation,
                   std::int64_t m, const RoutedRows& rows) {
  Problem out = linear_of(type, n, k, activation, m);
  out.rows = rows;
  return out;
}

Problem convolution_of(const Convolution& convolution, const TType& type, Scalar activation) {
  const TType numbers{&element_of(activation)};
  return normalise(convolution_nhwc(convolution, {numbers, type, numbers}));
}

Problem windows_of(const Windows& windows, const TType& type, std::int64_t n, Scalar activation,
                   std::int64_t m) {
  check(windows);
  Problem out = linear_of(type, n, windows.columns(), activation, m);
  out.rows = windows;
  return out;
}

Problem normalise(const TensorExpr& expr) {
  MatmulForm form = matmul_form(expr);
  Problem out =
      linear_of(expr.b.type, form.j.extent, form.k.extent, format_of(expr.a), form.i.extent);
  out.formats.y = out.formats.bias = format_of(expr.out);
  out.batch = form.s.extent;
  const bool dense = is_row_major(form, expr.a, form.i, form.k) &&
                     is_row_major(form, expr.b, form.j, form.k) &&
                     is_row_major(form, expr.out, form.i, form.j);
  if (dense) return out;
  if (const auto windows = windows_of(expr)) {
    out.rows = *windows;
  } else {
    out.rows = ImageToColumn{std::move(form)};
  }
  return out;
}

TensorExpr tensor_expr(const Problem& problem) {
  if (const auto* windows = std::get_if<ImageToColumn>(&problem.rows)) return windows->form.expr;
  const OperatorTypes types{
      {&element_of(problem.formats.x)}, problem.weight.type, {&element_of(problem.formats.y)}};
  if (const Windows* windows = problem.windows()) {
    const auto images = ceil_div(problem.m * problem.passes, windows->positions());
    return convolution_expr(*windows, images, problem.n, types);
  }
  const auto products = problem.experts() != nullptr ? problem.products() : problem.batch;
  const auto m = problem.m * problem.passes;
  return products > 1 ? batched_matmul_expr(products, m, problem.n, problem.k, types)
                      : linear_expr(m, problem.n, problem.k, types);
}

}  // namespace ladder
