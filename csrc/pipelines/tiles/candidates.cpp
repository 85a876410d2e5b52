// SPDX-License-Identifier: Apache-2.0
// The space of tiles.
#include <algorithm>
#include <utility>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/tiles/schedule.h"

namespace ladder {
namespace {

// Fewer are decoded: the tokens of an instruction would be mostly padding.
constexpr std::int64_t kFewestTokens = 17;
constexpr int kMostTokensOfCta = 128;
// Splits of K shorter than this are mostly reduction.
constexpr std::int64_t kFewestTiles = 4;

/// Rows and tokens of a warp.
struct WarpTile {
  int rows, tokens;
};

/// Parts of K for `tiles` tiles of `k_tiles` k-tiles each: one, and the two that leave the fullest
/// multiprocessor least to do. Adding up parts counts as some k-tiles.
std::vector<std::int64_t> splits_for(std::int64_t tiles, std::int64_t k_tiles,
                                     std::int64_t multiprocessors) {
  constexpr std::int64_t kMost = 16, kReduction = 2;
  std::vector<std::pair<std::int64_t, std::int64_t>> by_work;
  for (std::int64_t splits = 1; splits <= std::min(k_tiles / kFewestTiles, kMost); ++splits) {
    const auto of_cta = ceil_div(k_tiles, splits) + (splits > 1 ? kReduction : 0);
    by_work.emplace_back(ceil_div(tiles * splits, multiprocessors) * of_cta, splits);
  }
  std::ranges::sort(by_work);
  std::vector<std::int64_t> out = {1};
  for (const auto& [work, splits] : by_work) {
    if (out.size() < 3 && splits > 1) out.push_back(splits);
  }
  return out;
}

}  // namespace

std::vector<TileSchedule> tile_space(const Decisions& decisions, bool dependent_launch) {
  const Linear& expr = decisions.expr;
  const Device& device = *decisions.device;
  std::vector<TileSchedule> all;
  if (expr.max_m < kFewestTokens || !device.async_copy()) return all;
  const int n = decisions.whole.core.instruction->n;
  const auto columns_of_k = round_up(expr.k, kBlock);
  const bool both_places = usual_scale_place(expr) == ScalePlace::operands;
  // As few tiles of tokens as the most that a CTA has allows, and twice as many.
  const auto fewest = ceil_div(expr.max_m, std::int64_t{kMostTokensOfCta});
  for (const std::int64_t token_tiles : {fewest, 2 * fewest}) {
    const auto tokens =
        static_cast<int>(round_up(ceil_div(expr.max_m, token_tiles), std::int64_t{2} * n));
    if (token_tiles > fewest && tokens < 32) continue;
    for (const WarpTile warp : {WarpTile{64, 32},
                                {32, 64},
                                {32, 32},
                                {64, 64},
                                {64, 48},
                                {32, 48},
                                {32, 96},
                                {64, 16},
                                {32, 16},
                                {64, 24},
                                {32, 128}}) {
      if (tokens % warp.tokens != 0) continue;
      const int warps_m = tokens / warp.tokens;
      for (const int rows : {256, 128, 64}) {
        const int warps_n = rows / warp.rows, warps = warps_n * warps_m;
        if (rows % warp.rows != 0 || warps < 4 || warps > 16) continue;
        for (const int columns : {128, 64}) {
          for (const int ctas : {1, 2, 3}) {
            if (ctas * warps > 16) continue;
            const auto tiles = ceil_div(round_up(expr.n, kBlock), rows) * token_tiles;
            const auto all_tiles = ceil_div(columns_of_k, columns);
            for (const auto splits : splits_for(tiles, all_tiles, device.multiprocessors)) {
              auto k_tiles = ceil_div(all_tiles, splits);
              // Groups of several k-tiles stay whole.
              if (const auto sharing = expr.groups() == 1 ? 1 : expr.group_size() / columns;
                  splits > 1 && sharing > 1) {
                k_tiles = round_up(k_tiles, sharing);
              }
              TileSchedule s{.rows = rows,
                             .tokens = tokens,
                             .columns = columns,
                             .warps_n = warps_n,
                             .warps_m = warps_m,
                             .k_tiles = static_cast<int>(k_tiles),
                             .stages = 2,
                             .reduction = Reduction::none,
                             .route = Route::multiply_add,
                             .dependent_launch = dependent_launch,
                             .ctas_per_sm = ctas,
                             .token_tiles = static_cast<int>(token_tiles)};
              const auto parts = grid_of(s, expr).splits;
              if (parts > 1) {
                s.reduction = parts <= device.max_cluster ? Reduction::cluster : Reduction::ordered;
              }
              for (const int stages : {3, 4, 6}) {
                s.stages = static_cast<int>(std::min<std::int64_t>(stages, k_tiles));
                for (const Route route : {Route::multiply_add, Route::in_place}) {
                  if (route == Route::in_place && (expr.element != nullptr || expr.zero != 0)) {
                    continue;  // one more product for each 16 rows of a warp
                  }
                  s.route = route;
                  s.scale_place = ScalePlace::usual;
                  all.push_back(s);
                  if (!both_places) continue;
                  s.scale_place = ScalePlace::sums;
                  all.push_back(s);
                }
                if (s.stages < stages) break;
              }
            }
          }
        }
      }
    }
  }
  return all;
}

}  // namespace ladder
