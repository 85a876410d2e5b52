// SPDX-License-Identifier: Apache-2.0
#include "expr/tensor_expr.h"

#include <functional>
#include <numeric>
#include <sstream>

#include "base/error.h"

namespace ladder {
namespace {

std::int64_t elements(const Access& access) {
  return std::accumulate(access.shape.begin(), access.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

void print_index(std::ostream& out, const AffineIndex& index, const TensorExpr& expr) {
  bool first = true;
  for (const IndexTerm& term : index.terms) {
    if (!first) out << " + ";
    if (term.coefficient != 1) out << term.coefficient << '*';
    out << expr.iterators[term.iterator].name;
    first = false;
  }
  if (first) {
    out << index.constant;
  } else if (index.constant != 0) {
    out << (index.constant < 0 ? " - " : " + ") << std::abs(index.constant);
  }
}

void check_access(const Access& access, const TensorExpr& expr) {
  LADDER_REQUIRE(access.shape.size() == access.indices.size(), access.name, " has ",
                 access.shape.size(), " dimensions and ", access.indices.size(), " indices");
  for (auto extent : access.shape) {
    LADDER_REQUIRE(extent >= 1, access.name, " has a dimension of ", extent);
  }
  for (const AffineIndex& index : access.indices) {
    for (const IndexTerm& term : index.terms) {
      LADDER_REQUIRE(0 <= term.iterator && term.iterator < std::ssize(expr.iterators), access.name,
                     " uses iterator ", term.iterator, " of ", expr.iterators.size());
    }
  }
}

/// Steps `at` to the next point, the last iterator fastest; false after the last.
bool step(std::vector<std::int64_t>& at, const std::vector<Iterator>& iterators) {
  for (auto d = std::ssize(at); d-- > 0;) {
    if (++at[d] < iterators[d].extent) return true;
    at[d] = 0;
  }
  return false;
}

}  // namespace

void check(const TensorExpr& expr) {
  for (const Iterator& iterator : expr.iterators) {
    LADDER_REQUIRE(iterator.extent >= 1, "iterator ", iterator.name, " has extent ",
                   iterator.extent);
  }
  for (const Access* access : {&expr.a, &expr.b, &expr.out}) check_access(*access, expr);
  std::vector<int> writes(expr.iterators.size(), 0);
  for (std::size_t d = 0; d < expr.out.indices.size(); ++d) {
    const AffineIndex& index = expr.out.indices[d];
    LADDER_REQUIRE(
        index.terms.size() == 1 && index.terms[0].coefficient == 1 && index.constant == 0,
        "dimension ", d, " of ", expr.out.name, " is not one iterator alone");
    const int iterator = index.terms[0].iterator;
    ++writes[iterator];
    LADDER_REQUIRE(expr.iterators[iterator].extent == expr.out.shape[d], "dimension ", d, " of ",
                   expr.out.name, " has ", expr.out.shape[d], " elements and iterator ",
                   expr.iterators[iterator].name, " has ", expr.iterators[iterator].extent);
  }
  for (std::size_t i = 0; i < writes.size(); ++i) {
    const int wanted = expr.iterators[i].reduction ? 0 : 1;
    LADDER_REQUIRE(writes[i] == wanted, "iterator ", expr.iterators[i].name, " indexes ",
                   expr.out.name, ' ', writes[i], " times, not ", wanted);
  }
}

std::string to_string(const Access& access, const TensorExpr& expr) {
  std::ostringstream out;
  out << access.name << '[';
  for (std::size_t d = 0; d < access.indices.size(); ++d) {
    if (d > 0) out << ", ";
    print_index(out, access.indices[d], expr);
  }
  out << ']';
  return out.str();
}

std::string to_string(const TensorExpr& expr) {
  std::ostringstream out;
  const auto typed = [&](const Access& access) {
    return to_string(access, expr) + ' ' + to_string(access.type);
  };
  out << typed(expr.out) << " = sum(";
  bool first = true;
  for (const Iterator& iterator : expr.iterators) {
    if (!iterator.reduction) continue;
    if (!first) out << ", ";
    out << iterator.name;
    first = false;
  }
  out << ") " << typed(expr.a) << " * " << typed(expr.b);
  for (const Iterator& iterator : expr.iterators)
    out << "; " << iterator.name << '<' << iterator.extent;
  return out.str();
}

std::int64_t value(const AffineIndex& index, const std::vector<std::int64_t>& at) {
  std::int64_t sum = index.constant;
  for (const IndexTerm& term : index.terms) sum += term.coefficient * at[term.iterator];
  return sum;
}

std::int64_t place(const Access& access, const std::vector<std::int64_t>& at) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < access.shape.size(); ++d) {
    const std::int64_t coordinate = value(access.indices[d], at);
    if (coordinate < 0 || coordinate >= access.shape[d]) return -1;
    flat = flat * access.shape[d] + coordinate;
  }
  return flat;
}

std::vector<double> evaluate(const TensorExpr& expr, const std::vector<double>& a,
                             const std::vector<double>& b) {
  check(expr);
  LADDER_REQUIRE(std::ssize(a) == elements(expr.a), expr.a.name, " has ", elements(expr.a),
                 " elements, not ", a.size());
  LADDER_REQUIRE(std::ssize(b) == elements(expr.b), expr.b.name, " has ", elements(expr.b),
                 " elements, not ", b.size());
  std::vector<double> out(elements(expr.out));
  std::vector<std::int64_t> at(expr.iterators.size(), 0);
  do {
    const auto from_a = place(expr.a, at), from_b = place(expr.b, at);
    if (from_a >= 0 && from_b >= 0) out[place(expr.out, at)] += a[from_a] * b[from_b];
  } while (step(at, expr.iterators));
  return out;
}

}  // namespace ladder
