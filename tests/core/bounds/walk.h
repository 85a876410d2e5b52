// SPDX-License-Identifier: Apache-2.0
// The definition of traffic, executed: walks the block loops of a mapping one step at a time and
// counts the elements of each tile that is not already there. Slow, and shares no arithmetic with
// csrc/bounds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "bounds/mapping.h"

namespace ladder::bounds {

/// Elements of `tensor` that a block needs, as flat positions in its box.
inline std::set<std::int64_t> touched(const Einsum& einsum, const Tensor& tensor,
                                      const std::vector<std::int64_t>& low,
                                      const std::vector<std::int64_t>& high) {
  std::set<std::int64_t> positions{0};
  for (const Axis& axis : tensor.axes) {
    std::int64_t first = 0, last = 0, size = 1;
    for (const Term& t : axis) {
      first += t.coefficient * low[t.rank];
      last += t.coefficient * (high[t.rank] - 1);
      size += t.coefficient * (einsum.ranks[t.rank].size - 1);
    }
    std::set<std::int64_t> next;
    for (const std::int64_t p : positions) {
      for (std::int64_t i = first; i <= last; ++i) next.insert(p * size + i);
    }
    positions = std::move(next);
  }
  return positions;
}

/// As traffic_bytes, by walking. A tile may overlap the one before it only when the innermost
/// relevant loop took one step; after any other step it is loaded whole.
inline double walked_traffic(const Einsum& einsum, const Mapping& mapping) {
  const int ranks = static_cast<int>(einsum.ranks.size());
  double bytes = 0;
  for (const Tensor& tensor : einsum.tensors) {
    std::vector<std::int64_t> block(ranks, 0), last;
    const auto blocks = [&](int r) {
      return (einsum.ranks[r].size + mapping.tile[r] - 1) / mapping.tile[r];
    };
    int innermost = -1;
    for (int at = 0; at < ranks; ++at) {
      const int r = mapping.order[at];
      if (relevant(tensor, r) && blocks(r) > 1) innermost = r;
    }
    std::set<std::int64_t> here;
    double loaded = 0, all = 1;
    for (const Axis& axis : tensor.axes) {
      std::int64_t size = 1;
      for (const Term& t : axis) size += t.coefficient * (einsum.ranks[t.rank].size - 1);
      all *= static_cast<double>(size);
    }
    while (true) {
      std::vector<std::int64_t> low(ranks), high(ranks), index;
      for (int r = 0; r < ranks; ++r) {
        low[r] = block[r] * mapping.tile[r];
        high[r] = std::min(low[r] + mapping.tile[r], einsum.ranks[r].size);
        if (relevant(tensor, r)) index.push_back(block[r]);
      }
      if (index != last) {
        bool step = !last.empty();
        std::size_t i = 0;
        for (int r = 0; step && r < ranks; ++r) {
          if (!relevant(tensor, r)) continue;
          step = index[i] == last[i] + (r == innermost);
          ++i;
        }
        const std::set<std::int64_t> next = touched(einsum, tensor, low, high);
        for (const std::int64_t p : next) loaded += !(step && here.contains(p));
        here = next;
        last = index;
      }
      int at = ranks - 1;
      while (at >= 0 && ++block[mapping.order[at]] == blocks(mapping.order[at])) {
        block[mapping.order[at--]] = 0;
      }
      if (at < 0) break;
    }
    bytes += tensor.store_bytes * (tensor.output ? 2 * loaded - all : loaded);
  }
  return bytes;
}

}  // namespace ladder::bounds
