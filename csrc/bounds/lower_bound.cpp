// SPDX-License-Identifier: Apache-2.0
#include "bounds/lower_bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"

namespace ladder::bounds {
namespace {

/// A product of two inputs, with windows unfolded. Per tensor: the least bytes that make one
/// unfolded element usable, and how many multiplications one unfolded element can serve.
struct Unfolded {
  double multiplications = 1;
  std::array<double, 3> bytes{}, serves{1, 1, 1};
  double largest_move = 0;  ///< bytes of the largest single element
  bool even = true;         ///< all elements have one size, in the store and in the buffer
};

/// An upper bound of how many index tuples of an axis give the same element. For two terms, the
/// others are fixed modulo the coefficients; for more, all but the longest rank are free.
double overlap(const Einsum& einsum, const Axis& axis) {
  double all = 1, longest = 1;
  for (const Term& term : axis) {
    const double size = static_cast<double>(einsum.ranks[term.rank].size);
    all *= size;
    longest = std::max(longest, size);
  }
  if (axis.size() != 2) return all / longest;
  const std::int64_t common = std::gcd(axis[0].coefficient, axis[1].coefficient);
  double least = all;
  for (const int own : {0, 1}) {
    const double size = static_cast<double>(einsum.ranks[axis[own].rank].size);
    const double step = static_cast<double>(axis[1 - own].coefficient / common);
    least = std::min(least, std::ceil(size / step));
  }
  return least;
}

std::optional<Unfolded> unfold(const Einsum& einsum) {
  if (einsum.tensors.size() != 3) return std::nullopt;
  Unfolded result;
  for (int r = 0; r < std::ssize(einsum.ranks); ++r) {
    int missing = -1, count = 0;
    for (int t = 0; t < 3; ++t) {
      if (!relevant(einsum.tensors[t], r))
        missing = t;
      else
        ++count;
    }
    if (count < 2) return std::nullopt;
    const double size = static_cast<double>(einsum.ranks[r].size);
    result.multiplications *= size;
    if (missing >= 0) result.serves[missing] *= size;
  }
  for (int t = 0; t < 3; ++t) {
    const Tensor& tensor = einsum.tensors[t];
    const double code = tensor.code_bytes > 0 ? tensor.code_bytes : tensor.store_bytes;
    double windows = 1;
    for (const Axis& axis : tensor.axes) windows *= overlap(einsum, axis);
    result.bytes[t] = std::min(code, tensor.buffer_bytes) / windows;
    result.largest_move = std::max(result.largest_move, code);
    const double first = einsum.tensors[0].store_bytes;
    result.even = result.even && code == first && tensor.buffer_bytes == first;
  }
  return result;
}

/// Least bytes with which `v` multiplications are possible: Loomis and Whitney ask for a w c >=
/// v^2, and each tensor alone for x >= v / serves. Tensors above the common level stay at their
/// own minimum, the others share the rest of the product evenly.
double bytes_for(const Unfolded& u, double v) {
  std::array<double, 3> least;
  double needed = v * v;
  for (int t = 0; t < 3; ++t) {
    least[t] = u.bytes[t] * v / u.serves[t];
    needed *= u.bytes[t];
  }
  std::ranges::sort(least, std::greater<>());
  double fixed = 0;
  for (int pinned = 0; pinned < 3; ++pinned) {
    const double level = pinned == 0 ? std::cbrt(needed) : pinned == 1 ? std::sqrt(needed) : needed;
    if (level >= least[pinned]) return fixed + (3 - pinned) * level;
    fixed += least[pinned];
    needed /= least[pinned];
  }
  return fixed;
}

/// The most multiplications possible with `bytes` of operands at hand; never too few.
double most_multiplications(const Unfolded& u, double bytes) {
  double low = 0, high = u.multiplications;
  if (bytes_for(u, high) <= bytes) return high;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (bytes_for(u, middle) <= bytes ? low : high) = middle;
  }
  return high * (1 + 1e-12);
}

}  // namespace

double lower_bound(const Einsum& einsum, double capacity_bytes, std::int64_t buffers) {
  validate(einsum);
  LADDER_REQUIRE(capacity_bytes > 0, "a buffer of ", capacity_bytes, " bytes");
  LADDER_REQUIRE(buffers >= 1, buffers, " buffers; at least 1 is needed");
  double bound = algorithmic_minimum(einsum);
  const std::optional<Unfolded> unfolded = unfold(einsum);
  if (!unfolded) return bound;
  // Any T gives a bound; T = 2 S gives 2 v / sqrt(S) - 2 S, the best for large square problems.
  // The segments cover accumulating reads of c. A schedule that starts at zero saves one read of
  // each element in each buffer that accumulates it, and writes it there at least once instead.
  const double word = unfolded->largest_move;
  for (int step = -8; step <= 20; ++step) {
    double moved = 2 * capacity_bytes * std::exp2(step / 4.0);
    // A segment ends with the element that would exceed T, so it has moved more than T - word;
    // of elements of one size it moves T exactly.
    if (unfolded->even) moved = std::max(word, std::floor(moved / word) * word);
    const double certain = unfolded->even ? moved : moved - word;
    if (certain <= 0) continue;
    const double most = most_multiplications(*unfolded, capacity_bytes + moved);
    const double segments = unfolded->multiplications / most - static_cast<double>(buffers);
    bound = std::max(bound, certain * segments);
  }
  return bound;
}

}  // namespace ladder::bounds
