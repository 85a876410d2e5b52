// SPDX-License-Identifier: Apache-2.0
#include "bounds/tiling.h"

#include <algorithm>
#include <limits>
#include <span>

#include "base/integers.h"
#include "bounds/checked.h"

namespace ladder::bounds {
namespace {

constexpr Ranks bit(int rank) { return static_cast<Ranks>(1u << rank); }
constexpr bool subset(Ranks a, Ranks b) { return (a & ~b) == 0; }

/// Elements that one axis loads over all its tiles, when the blocks of `moving` follow one another
/// and keep what consecutive windows share. Blocks of another rank of the axis start afresh: all
/// but the last have `tile` elements, the last has the rest.
double sweep(const Einsum& einsum, const Axis& axis, const Tiling& t, int moving, std::size_t next,
             double rest) {
  while (next < axis.size() && axis[next].rank == moving) ++next;
  if (next < axis.size()) {
    const auto [rank, coefficient] = axis[next];
    const double blocks = t.blocks[bit(rank)], tile = t.tile[rank];
    const double last = static_cast<double>(einsum.ranks[rank].size) - (blocks - 1) * tile;
    const double c = static_cast<double>(coefficient);
    double sum = sweep(einsum, axis, t, moving, next + 1, rest + c * (last - 1));
    if (blocks > 1) {
      sum += (blocks - 1) * sweep(einsum, axis, t, moving, next + 1, rest + c * (tile - 1));
    }
    return sum;
  }
  for (const Term& term : axis) {
    if (term.rank != moving) continue;
    const double size = static_cast<double>(einsum.ranks[moving].size);
    const double blocks = t.blocks[bit(moving)], c = static_cast<double>(term.coefficient);
    // Either neighbouring windows touch and the whole range is read once, or there is a gap.
    return std::min(1 + rest + c * (size - 1), blocks * (1 + rest) + c * (size - blocks));
  }
  return 1 + rest;
}

/// Keeps what no other entry covers. `covers(a, b)`: a is at least as good as b for every tensor.
template <class T, class Covers>
void keep_best(std::vector<T>& all, Covers covers) {
  std::vector<T> best;
  for (const T& candidate : all) {
    if (std::ranges::any_of(best, [&](const T& b) { return covers(b, candidate); })) continue;
    std::erase_if(best, [&](const T& b) { return covers(candidate, b); });
    best.push_back(candidate);
  }
  all = std::move(best);
}

template <class Visit>
void permutations(Ranks of, Visit visit) {
  std::array<std::int8_t, kMaxRanks> order{};
  int count = 0;
  for (int r = 0; r < kMaxRanks; ++r) {
    if (of & bit(r)) order[count++] = static_cast<std::int8_t>(r);
  }
  do visit(std::span<const std::int8_t>(order.data(), count));
  while (std::next_permutation(order.begin(), order.begin() + count));
}

}  // namespace

Model::Model(const Einsum& einsum) : einsum_(einsum) {
  validate(einsum_);
  common_ = static_cast<Ranks>((1u << ranks()) - 1);
  for (std::size_t i = 0; i < einsum_.tensors.size(); ++i) {
    const Tensor& tensor = einsum_.tensors[i];
    elements_[i] = static_cast<double>(elements(einsum_, tensor));
    plain_[i] = true;
    Ranks alone = 0;
    for (const Axis& axis : tensor.axes) {
      for (const Term& term : axis) {
        relevant_[i] |= bit(term.rank);
        if (axis.size() > 1) windows_[i] |= bit(term.rank);
        if (axis.size() > 1 || term.coefficient != 1) plain_[i] = false;
      }
      if (axis.size() == 1 && axis[0].coefficient == 1) alone |= bit(axis[0].rank);
    }
    common_ &= alone;
  }
}

void Model::tile(const std::array<std::int64_t, kMaxRanks>& tile, Tiling& t) const {
  t.active = t.wide = 0;
  t.blocks[0] = 1;
  for (int r = 0; r < ranks(); ++r) {
    const std::int64_t count = ceil_div(einsum_.ranks[r].size, tile[r]);
    if (count > 1) t.active |= bit(r);
    if (tile[r] > 1) t.wide |= bit(r);
    t.tile[r] = static_cast<double>(tile[r]);
    for (unsigned set = 0; set < bit(r); ++set) {
      t.blocks[set | bit(r)] = t.blocks[set] * static_cast<double>(count);
    }
  }
  for (std::size_t i = 0; i < einsum_.tensors.size(); ++i) {
    double footprint = 1, swept = 1;
    std::array<double, kMaxRanks> windowed;
    windowed.fill(1);
    for (const Axis& axis : einsum_.tensors[i].axes) {
      double extent = 1;
      for (const Term& term : axis) {
        extent += static_cast<double>(term.coefficient) * (t.tile[term.rank] - 1);
      }
      footprint *= extent;
      const double every = sweep(einsum_, axis, t, -1, 0, 0);
      swept *= every;
      if (windows_[i] == 0) continue;
      for (int r = 0; r < ranks(); ++r) {
        const bool own = std::ranges::any_of(axis, [&](const Term& x) { return x.rank == r; });
        windowed[r] *= own && axis.size() > 1 ? sweep(einsum_, axis, t, r, 0, 0) : every;
      }
    }
    t.footprint[i] = footprint;
    t.swept[i] = swept;
    t.windowed[i] = windowed;
  }
}

Reuse Model::reuse(Ranks active, const std::array<std::int8_t, kMaxRanks>& order) const {
  Reuse result;
  result.order = order;
  for (std::size_t i = 0; i < einsum_.tensors.size(); ++i) {
    int moving = -1;
    Ranks outside = 0;
    for (int at = ranks() - 1; at >= 0; --at) {
      const int rank = order[at];
      if (!(active & bit(rank))) continue;
      const bool own = relevant_[i] & bit(rank);
      if (moving < 0 && own) moving = rank;
      if (moving >= 0 && !own) outside |= bit(rank);
    }
    result.outside[i] = outside;
    result.moving[i] = moving >= 0 && (windows_[i] & bit(moving)) ? moving : -1;
    const bool returns = (active & ~relevant_[i] & ~outside) != 0;
    if (plain_[i] && !returns) result.passing |= static_cast<std::uint8_t>(1u << i);
  }
  return result;
}

const std::vector<Reuse>& Model::reuses(Ranks active) {
  std::vector<Reuse>& known = reuses_[active];
  if (!known.empty()) return known;
  const std::size_t tensors = einsum_.tensors.size();
  permutations(active, [&](std::span<const std::int8_t> loops) {
    std::array<std::int8_t, kMaxRanks> order{};
    int at = 0;
    for (int r = 0; r < ranks(); ++r) {
      if (!(active & bit(r))) order[at++] = static_cast<std::int8_t>(r);
    }
    for (const std::int8_t r : loops) order[at++] = r;
    known.push_back(reuse(active, order));
  });
  keep_best(known, [&](const Reuse& a, const Reuse& b) {
    // More reuse means more tensors to hold, so `passing` must not shrink either.
    if ((b.passing & ~a.passing) != 0) return false;
    for (std::size_t i = 0; i < tensors; ++i) {
      if (a.moving[i] != b.moving[i] || !subset(a.outside[i], b.outside[i])) return false;
    }
    return true;
  });
  return known;
}

double Model::traffic(const Tiling& t, const Reuse& reuse) const {
  double bytes = 0;
  for (std::size_t i = 0; i < einsum_.tensors.size(); ++i) {
    const double once = reuse.moving[i] < 0 ? t.swept[i] : t.windowed[i][reuse.moving[i]];
    const double words = once * t.blocks[reuse.outside[i]];
    const Tensor& tensor = einsum_.tensors[i];
    bytes += tensor.store_bytes * (tensor.output ? 2 * words - elements_[i] : words);
  }
  return bytes;
}

double Model::buffer(const Tiling& t) const {
  double bytes = 0;
  for (std::size_t i = 0; i < einsum_.tensors.size(); ++i) {
    bytes += einsum_.tensors[i].buffer_bytes * t.footprint[i];
  }
  return bytes;
}

double Model::buffer(const Tiling& t, std::uint8_t passing) {
  double whole = 0;
  for (std::size_t i = 0; i < einsum_.tensors.size(); ++i) {
    if (!(passing >> i & 1)) whole += einsum_.tensors[i].buffer_bytes * t.footprint[i];
  }
  if (passing == 0) return whole;
  double least = std::numeric_limits<double>::infinity();
  for (const Residence& residence : residences(t.wide)) {
    double bytes = 0;
    for (std::size_t i = 0; i < einsum_.tensors.size(); ++i) {
      if (!(passing >> i & 1)) continue;
      double held = 1;
      for (int r = 0; r < ranks(); ++r) {
        if (residence.held[i] & bit(r)) held *= t.tile[r];
      }
      bytes += einsum_.tensors[i].buffer_bytes * held;
    }
    least = std::min(least, bytes);
  }
  return whole + least;
}

const std::vector<Residence>& Model::residences(Ranks wide) {
  std::vector<Residence>& known = residences_[wide];
  if (!known.empty()) return known;
  const std::size_t tensors = einsum_.tensors.size();
  permutations(wide, [&](std::span<const std::int8_t> loops) {
    Residence residence;
    for (std::size_t i = 0; i < tensors; ++i) {
      bool returns = false;
      for (const std::int8_t rank : loops) {
        if (!(relevant_[i] & bit(rank)))
          returns = true;
        else if (returns)
          residence.held[i] |= bit(rank);
      }
    }
    known.push_back(residence);
  });
  keep_best(known, [&](const Residence& a, const Residence& b) {
    for (std::size_t i = 0; i < tensors; ++i) {
      if (!subset(a.held[i], b.held[i])) return false;
    }
    return true;
  });
  return known;
}

}  // namespace ladder::bounds
