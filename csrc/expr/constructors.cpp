// SPDX-License-Identifier: Apache-2.0
#include "expr/constructors.h"

#include <utility>

#include "base/error.h"

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
  if (type.scale2 != nullptr) out.epilogue.emplace_back(SecondScale{});
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

Problem normalise(const TensorExpr& expr) {
  MatmulForm form = matmul_form(expr);
  Problem out =
      linear_of(expr.b.type, form.j.extent, form.k.extent, format_of(expr.a), form.i.extent);
  out.formats.y = out.formats.bias = format_of(expr.out);
  out.batch = form.s.extent;
  const bool dense = is_row_major(form, expr.a, form.i, form.k) &&
                     is_row_major(form, expr.b, form.j, form.k) &&
                     is_row_major(form, expr.out, form.i, form.j);
  if (!dense) out.rows = ImageToColumn{std::move(form)};
  return out;
}

TensorExpr tensor_expr(const Problem& problem) {
  if (const auto* windows = std::get_if<ImageToColumn>(&problem.rows)) return windows->form.expr;
  const OperatorTypes types{
      {&element_of(problem.formats.x)}, problem.weight.type, {&element_of(problem.formats.y)}};
  const auto products = problem.products();
  return products > 1 ? batched_matmul_expr(products, problem.m, problem.n, problem.k, types)
                      : linear_expr(problem.m, problem.n, problem.k, types);
}

}  // namespace ladder
