// SPDX-License-Identifier: Apache-2.0
#include "bounds/of_problem.h"

#include "expr/constructors.h"

namespace ladder::bounds {
namespace {

// Padding reads nothing: what lies outside the tensor is part of the box that holds it.
Tensor tensor_of(const Access& access, const Bytes& bytes, bool output = false) {
  Tensor out{access.name, {}, output, bytes.store, bytes.buffer, bytes.code};
  for (const AffineIndex& index : access.indices) {
    Axis& axis = out.axes.emplace_back();
    for (const IndexTerm& term : index.terms) axis.push_back({term.iterator, term.coefficient});
  }
  return out;
}

}  // namespace

Einsum einsum_of(const Problem& problem) {
  const TensorExpr expr = tensor_expr(problem);
  const double x = bytes_of(problem.formats.x), y = bytes_of(problem.formats.y);
  const double weight = weight_bytes(problem) / (static_cast<double>(problem.n) * problem.k);
  Einsum out;
  for (const Iterator& iterator : expr.iterators) {
    out.ranks.push_back({iterator.name, iterator.extent});
  }
  out.tensors = {tensor_of(expr.a, {x, x}),
                 tensor_of(expr.b, {weight, weight, problem.weight.bits / 8.0}),
                 tensor_of(expr.out, {y, y}, true)};
  validate(out);
  return out;
}

}  // namespace ladder::bounds
