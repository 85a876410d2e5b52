// SPDX-License-Identifier: Apache-2.0
#include "expr/iterators.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

bool uses(const Access& access, int iterator) {
  return std::ranges::any_of(access.indices, [&](const AffineIndex& index) {
    return std::ranges::any_of(index.terms, [&](const IndexTerm& term) {
      return term.iterator == iterator && term.coefficient != 0;
    });
  });
}

void fuse(Fused& fused, int iterator, const TensorExpr& expr) {
  fused.iterators.push_back(iterator);
  fused.extent *= expr.iterators[iterator].extent;
}

void unfuse(const Fused& fused, std::int64_t number, const TensorExpr& expr,
            std::vector<std::int64_t>& at) {
  for (auto it = fused.iterators.rbegin(); it != fused.iterators.rend(); ++it) {
    const auto extent = expr.iterators[*it].extent;
    at[*it] = number % extent;
    number /= extent;
  }
}

void print(std::ostream& out, const char* name, const Fused& fused, const TensorExpr& expr) {
  out << name << " = ";
  for (std::size_t d = 0; d < fused.iterators.size(); ++d) {
    out << (d > 0 ? ", " : "") << expr.iterators[fused.iterators[d]].name;
  }
  out << (fused.iterators.empty() ? "" : " = ") << fused.extent;
}

/// "w[f, y, x, c] = [1, 64, 576]".
void print_view(std::ostream& out, const Access& access, const MatmulForm& form,
                const Fused& rows) {
  out << '\n' << access.name << " [";
  for (std::size_t d = 0; d < access.shape.size(); ++d) {
    out << (d > 0 ? ", " : "") << access.shape[d];
  }
  out << "] as [" << form.s.extent << ", " << rows.extent << ", " << form.k.extent
      << "]: " << (view_is_permutation(form, access) ? "a permutation" : "gathered");
}

}  // namespace

std::string_view name_of(IteratorKind kind) {
  switch (kind) {
    case IteratorKind::S: return "S";
    case IteratorKind::I: return "I";
    case IteratorKind::J: return "J";
    case IteratorKind::K: return "K";
    case IteratorKind::T: return "T";
  }
  return "?";
}

std::vector<IteratorKind> classify(const TensorExpr& expr) {
  check(expr);
  std::vector<IteratorKind> kinds;
  for (int i = 0; i < std::ssize(expr.iterators); ++i) {
    const Iterator& iterator = expr.iterators[i];
    const bool in_a = uses(expr.a, i), in_b = uses(expr.b, i);
    if (iterator.reduction && in_a && in_b) {
      kinds.push_back(IteratorKind::K);
    } else if (!iterator.reduction && iterator.extent == 1) {
      kinds.push_back(IteratorKind::T);
    } else if (!iterator.reduction && (in_a || in_b)) {
      kinds.push_back(in_a && in_b ? IteratorKind::S : in_a ? IteratorKind::I : IteratorKind::J);
    } else {
      fail<Unsupported>("iterator ", iterator.name, ", ",
                        iterator.reduction ? "a reduction" : "spatial", ", is in ",
                        in_a   ? expr.a.name + " only"
                        : in_b ? expr.b.name + " only"
                               : "no input",
                        ": not a matmul");
    }
  }
  return kinds;
}

MatmulForm matmul_form(const TensorExpr& expr) {
  const auto kinds = classify(expr);
  MatmulForm form{expr, {}, {}, {}, {}};
  // Rows and columns of extent 1 are still rows and columns.
  bool rows = false, columns = false, sums = false;
  for (int i = 0; i < std::ssize(kinds); ++i) {
    switch (kinds[i]) {
      case IteratorKind::S: fuse(form.s, i, expr); break;
      case IteratorKind::I:
        fuse(form.i, i, expr);
        rows = true;
        break;
      case IteratorKind::J:
        fuse(form.j, i, expr);
        columns = true;
        break;
      case IteratorKind::K:
        fuse(form.k, i, expr);
        sums = true;
        break;
      case IteratorKind::T:
        rows = rows || (uses(expr.a, i) && !uses(expr.b, i));
        columns = columns || (uses(expr.b, i) && !uses(expr.a, i));
        break;
    }
  }
  const char* missing = !rows      ? "I: no iterator is in a and out alone"
                        : !columns ? "J: no iterator is in b and out alone"
                        : !sums    ? "K: no iterator is summed over"
                                   : nullptr;
  if (missing != nullptr) fail<Unsupported>("not a matmul, without ", missing);
  return form;
}

std::vector<std::int64_t> iterators_at(const MatmulForm& form, std::int64_t s, std::int64_t i,
                                       std::int64_t j, std::int64_t k) {
  std::vector<std::int64_t> at(form.expr.iterators.size(), 0);
  unfuse(form.s, s, form.expr, at);
  unfuse(form.i, i, form.expr, at);
  unfuse(form.j, j, form.expr, at);
  unfuse(form.k, k, form.expr, at);
  return at;
}

std::int64_t place_in_a(const MatmulForm& form, std::int64_t s, std::int64_t i, std::int64_t k) {
  return place(form.expr.a, iterators_at(form, s, i, 0, k));
}
std::int64_t place_in_b(const MatmulForm& form, std::int64_t s, std::int64_t j, std::int64_t k) {
  return place(form.expr.b, iterators_at(form, s, 0, j, k));
}
std::int64_t place_in_out(const MatmulForm& form, std::int64_t s, std::int64_t i, std::int64_t j) {
  return place(form.expr.out, iterators_at(form, s, i, j, 0));
}

// Decided by the indices alone: each is one iterator with coefficient 1 that covers its dimension,
// and no iterator indexes two.
bool view_is_permutation(const MatmulForm& form, const Access& access) {
  std::vector<bool> used(form.expr.iterators.size(), false);
  for (std::size_t d = 0; d < access.indices.size(); ++d) {
    std::vector<IndexTerm> terms;
    for (const IndexTerm& term : access.indices[d].terms) {
      // An iterator of one value adds nothing.
      if (form.expr.iterators[term.iterator].extent > 1) terms.push_back(term);
    }
    if (access.indices[d].constant != 0) return false;
    if (terms.empty() && access.shape[d] == 1) continue;
    if (terms.size() != 1 || terms[0].coefficient != 1 || used[terms[0].iterator] ||
        form.expr.iterators[terms[0].iterator].extent != access.shape[d]) {
      return false;
    }
    used[terms[0].iterator] = true;
  }
  return true;
}

std::string to_string(const MatmulForm& form) {
  std::ostringstream out;
  print(out, "S", form.s, form.expr);
  print(out, "; I", form.i, form.expr);
  print(out, "; J", form.j, form.expr);
  print(out, "; K", form.k, form.expr);
  print_view(out, form.expr.a, form, form.i);
  print_view(out, form.expr.b, form, form.j);
  return out.str();
}

}  // namespace ladder
