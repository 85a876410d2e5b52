// SPDX-License-Identifier: Apache-2.0
//
// An index map is a function from the coordinates of one array to those of another:
//
//     f : [0, extents[0]) x [0, extents[1]) x ...  ->  coordinates of outputs.size() dimensions
//
// Every output is a constant plus a sum of digits of the coordinates. A digit is x / divisor %
// extent: write x in a mixed radix and take one place of it. So an output is affine in the digits,
// and floor-division and remainder by constants stay in the form as long as nothing carries:
// dividing 8 y + x, x < 8, by 4 gives 2 y + x / 4. Where a carry would be needed, as in (x + y) /
// 2, the operation is refused, and that is what keeps every question below decidable.
//
// Laws, each a property test:
//     (f * g)(x) == f(g(x))                          composition
//     (f * g) * h == f * (g * h)
//     f * identity == f == identity * f
//     inverse(f) * f == identity                     for every bijection; found, not given
//     inverse(f * g) == inverse(g) * inverse(f)
//     layout_of(index_map(l)) == l                   layouts are index maps of (thread, slot)
//     inverse(l)(0, e) == inverse(index_map(l))(the coordinates of element e)
//
// A map is a bijection, onto the box of its shape, exactly when the digits that its outputs use are
// a mixed radix of each coordinate, and the factors that they get a mixed radix of each output.
// Then two forms of one bijection are equal as values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "layout/layout.h"

namespace ladder {

/// factor * (x[input] / divisor % extent).
struct IndexDigit {
  int input;
  std::int64_t divisor, extent, factor;
  std::int64_t whole;  ///< extent of x[input]; when divisor * extent reaches it, % does nothing
  bool operator==(const IndexDigit&) const = default;
};

/// constant + sum of digits, in canonical form: largest factor first, neighbours in both radices
/// joined, none that is always zero.
struct IndexExpr {
  std::int64_t constant = 0;
  std::vector<IndexDigit> digits = {};

  IndexExpr(std::int64_t value = 0) : constant(value) {}  // NOLINT: a number is an index
  /// The coordinate `input`, below `extent`.
  static IndexExpr of(int input, std::int64_t extent);

  bool operator==(const IndexExpr&) const = default;
  std::int64_t operator()(const std::vector<std::int64_t>& x) const;
  std::int64_t low() const;   ///< smallest value
  std::int64_t high() const;  ///< largest value
};

IndexExpr operator+(const IndexExpr& a, const IndexExpr& b);
IndexExpr operator*(const IndexExpr& a, std::int64_t factor);
/// Floor-division and remainder, `by` > 0. Throw Unsupported when the result has no such form: a
/// carry, a negative part, or a digit that does not split.
IndexExpr operator/(const IndexExpr& a, std::int64_t by);
IndexExpr operator%(const IndexExpr& a, std::int64_t by);

struct IndexMap {
  std::vector<std::int64_t> extents;  ///< of the coordinates that it takes
  std::vector<IndexExpr> outputs;

  bool operator==(const IndexMap&) const = default;
  /// Throws InvalidArgument when x is not in the extents.
  std::vector<std::int64_t> operator()(const std::vector<std::int64_t>& x) const;
  /// The smallest box that holds every result: what the map makes of the shape `extents`.
  /// Throws InvalidArgument when some result is negative.
  std::vector<std::int64_t> shape() const;
};

/// The map written as a function of the coordinates:
///     index_map({n, k}, [](const auto& x) { return IndexExprs{x[0] / 64, x[1] / 64, x[0] % 64}; })
using IndexExprs = std::vector<IndexExpr>;
IndexMap index_map(std::vector<std::int64_t> extents,
                   const std::function<IndexExprs(const IndexExprs&)>& outputs);

IndexMap identity_map(std::vector<std::int64_t> extents);

/// First `inner`, then `outer`. Throws InvalidArgument when results of `inner` are not coordinates
/// of `outer`, Unsupported when the composition has no such form.
IndexMap operator*(const IndexMap& outer, const IndexMap& inner);

/// From shape() back to extents; nothing when the map is no bijection between them.
std::optional<IndexMap> inverse(const IndexMap& map);

/// (thread, slot) to the coordinates of the element.
IndexMap index_map(const Layout& layout);
/// The layout of shape() that this map of (thread, slot) is. Throws Unsupported for constants and
/// for digits that are used twice or do not divide their coordinate; InvalidArgument for other than
/// two coordinates.
Layout layout_of(const IndexMap& map);

/// "(x0, x1) -> (x0 / 64, x1 % 64 * 2 + 1)".
std::string to_string(const IndexMap& map);

}  // namespace ladder
