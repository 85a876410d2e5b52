// SPDX-License-Identifier: Apache-2.0
#include "bounds/einsum.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "bounds/checked.h"

namespace ladder::bounds {
namespace {

void validate_tensor(const Einsum& einsum, const Tensor& tensor) {
  std::vector<bool> seen(einsum.ranks.size());
  for (const Axis& axis : tensor.axes) {
    LADDER_REQUIRE(!axis.empty(), "an axis of tensor ", tensor.name, " has no rank");
    LADDER_REQUIRE(!tensor.output || (axis.size() == 1 && axis[0].coefficient == 1),
                   "an axis of the output ", tensor.name, " is not a plain rank");
    for (const Term& term : axis) {
      LADDER_REQUIRE(term.rank >= 0 && term.rank < std::ssize(einsum.ranks), "tensor ", tensor.name,
                     " uses rank ", term.rank, " of ", einsum.ranks.size());
      const Rank& rank = einsum.ranks[term.rank];
      LADDER_REQUIRE(term.coefficient >= 1, "the coefficient of rank ", rank.name, " in tensor ",
                     tensor.name, " is ", term.coefficient, ", less than 1");
      LADDER_REQUIRE(!seen[term.rank], "tensor ", tensor.name, " uses rank ", rank.name,
                     " more than once");
      seen[term.rank] = true;
    }
  }
  for (const double bytes : {tensor.store_bytes, tensor.buffer_bytes}) {
    LADDER_REQUIRE(bytes > 0 && std::isfinite(bytes), "an element of tensor ", tensor.name, " has ",
                   bytes, " bytes");
  }
  LADDER_REQUIRE(tensor.code_bytes >= 0 && tensor.code_bytes <= tensor.store_bytes,
                 "the code of an element of tensor ", tensor.name, " has ", tensor.code_bytes,
                 " bytes, the element ", tensor.store_bytes);
}

std::int64_t extent(const Einsum& einsum, const Axis& axis) {
  std::int64_t last = 0;
  for (const Term& term : axis) {
    last = total(last, product(term.coefficient, einsum.ranks[term.rank].size - 1));
  }
  return total(last, 1);
}

/// Distinct values of the axis. Counted one by one up to a limit that no real layer reaches; past
/// it, the longest single rank, which is never too many.
std::int64_t touched_extent(const Einsum& einsum, const Axis& axis) {
  constexpr std::int64_t kCounted = std::int64_t{1} << 20;
  const std::int64_t all = extent(einsum, axis);
  if (axis.size() == 1) return einsum.ranks[axis[0].rank].size;
  std::int64_t longest = 1, visits = 1;
  for (const Term& term : axis) {
    longest = std::max(longest, einsum.ranks[term.rank].size);
    visits = product(visits, einsum.ranks[term.rank].size);
  }
  if (all > kCounted || visits > 4 * kCounted) return longest;
  std::vector<bool> touched(static_cast<std::size_t>(all));
  touched[0] = true;
  for (const Term& term : axis) {
    std::vector<bool> next(touched.size());
    for (std::int64_t at = 0; at < all; ++at) {
      if (!touched[at]) continue;
      for (std::int64_t i = 0; i < einsum.ranks[term.rank].size; ++i) {
        const std::int64_t moved = at + term.coefficient * i;
        if (moved < all) next[moved] = true;
      }
    }
    touched = std::move(next);
  }
  return std::count(touched.begin(), touched.end(), true);
}

Tensor tensor(std::string name, const Bytes& bytes, std::vector<Axis> axes, bool output = false) {
  return {std::move(name), std::move(axes), output, bytes.store, bytes.buffer, bytes.code};
}

Einsum checked(Einsum einsum) {
  validate(einsum);
  return einsum;
}

}  // namespace

void validate(const Einsum& einsum) {
  LADDER_REQUIRE(!einsum.ranks.empty(), "an einsum without ranks");
  LADDER_REQUIRE(einsum.ranks.size() <= kMaxRanks, "an einsum of ", einsum.ranks.size(),
                 " ranks; at most ", kMaxRanks, " are supported");
  LADDER_REQUIRE(einsum.tensors.size() >= 2, "an einsum needs an input and an output, not ",
                 einsum.tensors.size(), " tensors");
  LADDER_REQUIRE(einsum.tensors.size() <= 8, "an einsum of ", einsum.tensors.size(),
                 " tensors; at most 8 are supported");
  for (std::size_t i = 0; i < einsum.tensors.size(); ++i) {
    LADDER_REQUIRE(einsum.tensors[i].output == (i + 1 == einsum.tensors.size()), "tensor ",
                   einsum.tensors[i].name, " breaks the rule that the last tensor is the output");
  }
  for (int r = 0; r < std::ssize(einsum.ranks); ++r) {
    const Rank& rank = einsum.ranks[r];
    LADDER_REQUIRE(rank.size >= 1, "rank ", rank.name, " is ", rank.size, ", less than 1");
    LADDER_REQUIRE(
        std::ranges::any_of(einsum.tensors, [&](const Tensor& t) { return relevant(t, r); }),
        "no tensor uses rank ", rank.name);
  }
  for (const Tensor& t : einsum.tensors) validate_tensor(einsum, t);
  // The most that any mapping moves: each tensor, read and written, in every iteration.
  product(iterations(einsum), 2 * std::ssize(einsum.tensors));
  std::int64_t all = 0;
  for (const Tensor& t : einsum.tensors) all = total(all, product(2, elements(einsum, t)));
}

std::int64_t iterations(const Einsum& einsum) {
  std::int64_t result = 1;
  for (const Rank& rank : einsum.ranks) result = product(result, rank.size);
  return result;
}

std::int64_t operations(const Einsum& einsum) {
  return product(2, iterations(einsum)) - elements(einsum, einsum.tensors.back());
}

std::int64_t elements(const Einsum& einsum, const Tensor& tensor) {
  std::int64_t result = 1;
  for (const Axis& axis : tensor.axes) result = product(result, extent(einsum, axis));
  return result;
}

std::int64_t touched_elements(const Einsum& einsum, const Tensor& tensor) {
  std::int64_t result = 1;
  for (const Axis& axis : tensor.axes) result = product(result, touched_extent(einsum, axis));
  return result;
}

double algorithmic_minimum(const Einsum& einsum) {
  double bytes = 0;
  for (const Tensor& t : einsum.tensors) {
    bytes += t.store_bytes * static_cast<double>(touched_elements(einsum, t));
  }
  return bytes;
}

bool relevant(const Tensor& tensor, int rank) {
  return std::ranges::any_of(tensor.axes, [&](const Axis& axis) {
    return std::ranges::any_of(axis, [&](const Term& term) { return term.rank == rank; });
  });
}

Einsum matmul(std::int64_t m, std::int64_t n, std::int64_t k, const MatmulBytes& bytes) {
  return checked({{{"M", m}, {"N", n}, {"K", k}},
                  {tensor("a", bytes.a, {{{0}}, {{2}}}), tensor("w", bytes.w, {{{1}}, {{2}}}),
                   tensor("c", bytes.c, {{{0}}, {{1}}}, true)}});
}

Einsum batched_matmul(std::int64_t heads, std::int64_t m, std::int64_t n, std::int64_t k,
                      const MatmulBytes& bytes) {
  return checked(
      {{{"H", heads}, {"M", m}, {"N", n}, {"K", k}},
       {tensor("a", bytes.a, {{{0}}, {{1}}, {{3}}}), tensor("w", bytes.w, {{{0}}, {{2}}, {{3}}}),
        tensor("c", bytes.c, {{{0}}, {{1}}, {{2}}}, true)}});
}

Einsum grouped_matmul(std::int64_t heads, std::int64_t groups, std::int64_t m, std::int64_t n,
                      std::int64_t k, const MatmulBytes& bytes) {
  LADDER_REQUIRE(groups >= 1 && heads >= 1 && heads % groups == 0, heads,
                 " heads do not divide into ", groups, " groups");
  return checked({{{"G", groups}, {"R", heads / groups}, {"M", m}, {"N", n}, {"K", k}},
                  {tensor("a", bytes.a, {{{0}}, {{1}}, {{2}}, {{4}}}),
                   tensor("w", bytes.w, {{{0}}, {{3}}, {{4}}}),
                   tensor("c", bytes.c, {{{0}}, {{1}}, {{2}}, {{3}}}, true)}});
}

Einsum conv2d(const Conv2d& c, const MatmulBytes& bytes) {
  Einsum einsum{
      {{"K", c.out_channels},
       {"C", c.in_channels},
       {"P", c.height},
       {"Q", c.width},
       {"R", c.kernel_height},
       {"S", c.kernel_width}},
      {tensor("i", bytes.a,
              {{{1}}, {{2, c.stride}, {4, c.dilation}}, {{3, c.stride}, {5, c.dilation}}}),
       tensor("w", bytes.w, {{{0}}, {{1}}, {{4}}, {{5}}}),
       tensor("o", bytes.c, {{{0}}, {{2}}, {{3}}}, true)}};
  if (c.batch != 1) {
    einsum.ranks.push_back({"B", c.batch});
    einsum.tensors[0].axes.push_back({{6}});
    einsum.tensors[2].axes.push_back({{6}});
  }
  return checked(std::move(einsum));
}

Einsum conv1d(const Conv2d& c, const MatmulBytes& bytes) {
  Einsum einsum{
      {{"K", c.out_channels}, {"C", c.in_channels}, {"Q", c.width}, {"S", c.kernel_width}},
      {tensor("i", bytes.a, {{{1}}, {{2, c.stride}, {3, c.dilation}}}),
       tensor("w", bytes.w, {{{0}}, {{1}}, {{3}}}), tensor("o", bytes.c, {{{0}}, {{2}}}, true)}};
  if (c.batch != 1) {
    einsum.ranks.push_back({"B", c.batch});
    einsum.tensors[0].axes.push_back({{4}});
    einsum.tensors[2].axes.push_back({{4}});
  }
  return checked(std::move(einsum));
}

}  // namespace ladder::bounds
