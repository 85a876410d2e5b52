// SPDX-License-Identifier: Apache-2.0
#include "bounds/mapping.h"

#include <bit>

#include "bounds/checked.h"
#include "bounds/slope.h"
#include "bounds/tiling.h"

namespace ladder::bounds {
namespace {

/// The tiling of a mapping that fits; throws InvalidArgument otherwise.
Tiling fitted(const Model& model, const Mapping& mapping) {
  unsigned seen = 0;
  for (int r = 0; r < model.ranks(); ++r) {
    const Rank& rank = model.einsum().ranks[r];
    LADDER_REQUIRE(mapping.tile[r] >= 1 && mapping.tile[r] <= rank.size, "the tile of rank ",
                   rank.name, " is ", mapping.tile[r], ", not in 1..", rank.size);
    if (mapping.order[r] >= 0 && mapping.order[r] < model.ranks()) seen |= 1u << mapping.order[r];
  }
  LADDER_REQUIRE(std::popcount(seen) == model.ranks(),
                 "the order of a mapping names every rank once");
  Tiling tiling;
  model.tile(mapping.tile, tiling);
  return tiling;
}

}  // namespace

double buffer_bytes(const Einsum& einsum, const Mapping& mapping, Space space) {
  Model model(einsum);
  const Tiling tiling = fitted(model, mapping);
  if (space == Space::uniform) return model.buffer(tiling);
  return model.buffer(tiling, model.reuse(tiling.active, mapping.order).passing);
}

double traffic_bytes(const Einsum& einsum, const Mapping& mapping) {
  const Model model(einsum);
  const Tiling tiling = fitted(model, mapping);
  return model.traffic(tiling, model.reuse(tiling.active, mapping.order));
}

std::int64_t mapping_count(const Einsum& einsum, bool bypass) {
  validate(einsum);
  // by_loops[c]: tiles with c loops of more than one block
  std::vector<std::int64_t> by_loops{1};
  for (const Rank& rank : einsum.ranks) {
    const auto proper = std::ssize(tile_sizes(rank.size, Factors::divisors)) - 1;
    std::vector<std::int64_t> next(by_loops.size() + 1);
    for (std::size_t c = 0; c < by_loops.size(); ++c) {
      next[c] = total(next[c], by_loops[c]);
      next[c + 1] = total(next[c + 1], product(by_loops[c], proper));
    }
    by_loops = std::move(next);
  }
  std::int64_t count = 0, orders = 1;
  for (std::size_t c = 0; c < by_loops.size(); ++c) {
    if (c > 0) orders *= static_cast<std::int64_t>(c);
    count = total(count, product(by_loops[c], orders));
  }
  return bypass ? product(count, std::int64_t{1} << einsum.tensors.size()) : count;
}

}  // namespace ladder::bounds
