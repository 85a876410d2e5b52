// SPDX-License-Identifier: Apache-2.0
// The arithmetic behind a mapping, split by what it depends on, so that a search over millions of
// mappings does each part once: the Einsum, the loop order, the tile.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "bounds/mapping.h"

namespace ladder::bounds {

inline constexpr int kMaxTensors = 8;
using Ranks = std::uint8_t;  ///< a set of ranks, one bit each

/// Loop orders as far as traffic depends on them. For each tensor: the loop that moves it to the
/// next tile, and the irrelevant loops that make it come back.
struct Reuse {
  std::array<std::int8_t, kMaxTensors> moving{};  ///< -1 unless it moves overlapping windows
  std::array<Ranks, kMaxTensors> outside{};       ///< irrelevant loops outside the moving one
  std::uint8_t passing = 0;  ///< tensors (one bit each) that no loop reuses from tile to tile
  std::array<std::int8_t, kMaxRanks> order{};
};

/// Loop orders inside a tile as far as the space of a passing tensor depends on them: the ranks
/// over which each tensor must be held, because an irrelevant loop outside them returns to it.
struct Residence {
  std::array<Ranks, kMaxTensors> held{};
};

/// One tile, with everything that orders share.
struct Tiling {
  Ranks active = 0;  ///< ranks of more than one block
  Ranks wide = 0;    ///< ranks whose tile is more than one element
  std::array<double, kMaxRanks> tile{};
  std::array<double, 1 << kMaxRanks> blocks{};  ///< number of blocks over each set of ranks
  std::array<double, kMaxTensors> footprint{};  ///< elements of the tile
  std::array<double, kMaxTensors> swept{};      ///< elements of all tiles of the tensor
  std::array<std::array<double, kMaxRanks>, kMaxTensors> windowed{};  ///< `swept` less overlaps
};

class Model {
 public:
  explicit Model(const Einsum& einsum);

  const Einsum& einsum() const { return einsum_; }
  int ranks() const { return static_cast<int>(einsum_.ranks.size()); }

  /// Fills `tiling`; entries of tile in [1, size] are the caller's duty.
  void tile(const std::array<std::int64_t, kMaxRanks>& tile, Tiling& tiling) const;

  /// Orders of the loops `active` that no other order beats for every tensor.
  const std::vector<Reuse>& reuses(Ranks active);

  /// What `order` reuses when the loops `active` have more than one block.
  Reuse reuse(Ranks active, const std::array<std::int8_t, kMaxRanks>& order) const;

  double traffic(const Tiling& tiling, const Reuse& reuse) const;

  /// Space of whole tiles.
  double buffer(const Tiling& tiling) const;

  /// Space when the tensors `passing` are streamed, with the best order inside the tile.
  double buffer(const Tiling& tiling, std::uint8_t passing);

  /// Ranks that index all tensors by themselves: no mapping gains from a tile wider than 1.
  Ranks common() const { return common_; }

 private:
  const std::vector<Residence>& residences(Ranks wide);

  Einsum einsum_;
  std::array<Ranks, kMaxTensors> relevant_{};
  std::array<Ranks, kMaxTensors> windows_{};  ///< ranks that share an axis, inputs only
  std::array<bool, kMaxTensors> plain_{};     ///< indexed by plain ranks: may be streamed
  std::array<double, kMaxTensors> elements_{};
  Ranks common_ = 0;
  std::array<std::vector<Reuse>, 1 << kMaxRanks> reuses_;
  std::array<std::vector<Residence>, 1 << kMaxRanks> residences_;
};

}  // namespace ladder::bounds
