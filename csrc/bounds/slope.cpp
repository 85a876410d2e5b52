// SPDX-License-Identifier: Apache-2.0
#include "bounds/slope.h"

#include <algorithm>

#include "base/error.h"
#include "base/integers.h"
#include "bounds/checked.h"
#include "bounds/matmul.h"
#include "bounds/tiling.h"

namespace ladder::bounds {
namespace {

/// A Pareto front grown point by point.
class Front {
 public:
  /// Whether a mapping with this point would be a new one on the front.
  bool wants(const Point& p) const {
    const auto above = std::ranges::upper_bound(all_, p.buffer_bytes, {}, &buffer_of);
    return above == all_.begin() || std::prev(above)->point.traffic_bytes > p.traffic_bytes;
  }
  void add(const Mapped& mapped) {
    const auto from = std::ranges::lower_bound(all_, mapped.point.buffer_bytes, {}, &buffer_of);
    auto to = from;
    while (to != all_.end() && to->point.traffic_bytes >= mapped.point.traffic_bytes) ++to;
    all_.insert(all_.erase(from, to), mapped);
  }
  std::vector<Mapped> take() { return std::move(all_); }

 private:
  static double buffer_of(const Mapped& mapped) { return mapped.point.buffer_bytes; }
  std::vector<Mapped> all_;
};

/// Calls `visit` with every tile made of the sizes given for each rank.
template <class Visit>
void every_tile(const std::vector<std::vector<std::int64_t>>& sizes, Visit visit) {
  std::array<std::int64_t, kMaxRanks> tile{};
  std::array<std::size_t, kMaxRanks> at{};
  for (std::size_t r = 0; r < sizes.size(); ++r) tile[r] = sizes[r][0];
  while (true) {
    visit(tile);
    std::size_t r = sizes.size();
    while (r > 0 && ++at[r - 1] == sizes[r - 1].size()) {
      at[--r] = 0;
      tile[r] = sizes[r][0];
    }
    if (r == 0) return;
    tile[r - 1] = sizes[r - 1][at[r - 1]];
  }
}

std::vector<std::vector<std::int64_t>> all_sizes(const Einsum& einsum, Factors factors) {
  std::vector<std::vector<std::int64_t>> sizes;
  for (const Rank& rank : einsum.ranks) sizes.push_back(tile_sizes(rank.size, factors));
  return sizes;
}

}  // namespace

std::vector<std::int64_t> tile_sizes(std::int64_t size, Factors factors) {
  LADDER_REQUIRE(size >= 1, "a rank is ", size, ", less than 1");
  std::vector<std::int64_t> sizes;
  for (std::int64_t low = 1; low <= size && low - 1 <= size / low; ++low) {
    if (factors == Factors::divisors && size % low != 0) continue;
    // ceil(size / j) takes about sqrt(size) values for small j and as many for large j.
    sizes.push_back(ceil_div(size, ceil_div(size, low)));
    sizes.push_back(ceil_div(size, low));
  }
  std::ranges::sort(sizes);
  const auto repeated = std::ranges::unique(sizes);
  sizes.erase(repeated.begin(), repeated.end());
  return sizes;
}

std::vector<Mapped> best_mappings(const Einsum& einsum, const Options& options) {
  validate(einsum);
  Front front;
  if (const auto shape = matmul_shape(einsum)) {
    for_each_matmul_candidate(*shape, options, [&](const Mapped& mapped) {
      if (front.wants(mapped.point)) front.add(mapped);
    });
    return front.take();
  }
  Model model(einsum);
  auto sizes = all_sizes(einsum, options.factors);
  for (int r = 0; r < model.ranks(); ++r) {
    if (model.common() >> r & 1) sizes[r] = {1};
  }
  Tiling tiling;
  every_tile(sizes, [&](const std::array<std::int64_t, kMaxRanks>& tile) {
    model.tile(tile, tiling);
    const double whole = model.buffer(tiling);
    std::array<double, 1 << kMaxTensors> spaces;  // by passing tensors; 0: not yet known
    if (options.space == Space::streaming) spaces.fill(0);
    for (const Reuse& reuse : model.reuses(tiling.active)) {
      Point point{whole, model.traffic(tiling, reuse)};
      if (options.space == Space::streaming && reuse.passing != 0) {
        double& space = spaces[reuse.passing];
        if (space == 0) space = model.buffer(tiling, reuse.passing);
        point.buffer_bytes = space;
      }
      if (front.wants(point)) front.add({point, {tile, reuse.order}});
    }
  });
  return front.take();
}

Curve ski_slope(const Einsum& einsum, const Options& options) {
  std::vector<Point> points;
  for (const Mapped& mapped : best_mappings(einsum, options)) points.push_back(mapped.point);
  return Curve(std::move(points));
}

Curve exhaustive_slope(const Einsum& einsum, const Options& options) {
  Model model(einsum);
  std::vector<Point> points;
  Tiling tiling;
  every_tile(all_sizes(einsum, options.factors),
             [&](const std::array<std::int64_t, kMaxRanks>& tile) {
               model.tile(tile, tiling);
               std::array<std::int8_t, kMaxRanks> order{};
               for (int r = 0; r < kMaxRanks; ++r) order[r] = static_cast<std::int8_t>(r);
               do {
                 const Reuse reuse = model.reuse(tiling.active, order);
                 const double space = options.space == Space::uniform
                                          ? model.buffer(tiling)
                                          : model.buffer(tiling, reuse.passing);
                 points.push_back({space, model.traffic(tiling, reuse)});
               } while (std::next_permutation(order.begin(), order.begin() + model.ranks()));
             });
  return Curve(std::move(points));
}

}  // namespace ladder::bounds
