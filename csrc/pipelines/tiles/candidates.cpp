// SPDX-License-Identifier: Apache-2.0
// The space of tiles.
#include <algorithm>
#include <span>
#include <utility>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/linear/objection.h"
#include "pipelines/linear/raster.h"
#include "pipelines/linear/splits.h"
#include "pipelines/tiles/registers.h"
#include "pipelines/tiles/schedule.h"

namespace ladder {
namespace {

constexpr int kMostTokensOfCta = 128;
// Of experts, whose decode kernels are not persistent: gate and up of gpt-oss, items of 16 rows,
// take 97 us by tiles and 102 to 116 by decode kernels (H200).
constexpr std::int64_t kFewestOfItems = 9;
// Splits of K shorter than this are mostly reduction.
constexpr std::int64_t kFewestTiles = 4, kMostSplits = 16;
// Of a ring; where copies end at once, one k-tile is copied while another is multiplied.
constexpr int kStages[] = {3, 4, 6}, kStagesOfCopiesAtOnce[] = {2};

/// Rows and tokens of a warp.
struct WarpTile {
  int rows, tokens;
};
constexpr WarpTile kWarpTiles[] = {{64, 32}, {32, 64}, {32, 32}, {64, 64}, {64, 48}, {32, 48},
                                   {32, 96}, {64, 16}, {32, 16}, {64, 24}, {32, 128}};
/// Rows and warps of a CTA whose warpgroups multiply.
struct WarpgroupTile {
  int rows, warps;
};
// 192 rows fill devices where 256 do not: 6144 rows are 32 tiles, by four of tokens 128 CTAs.
constexpr WarpgroupTile kWarpgroupTiles[] = {{128, 8}, {256, 8}, {256, 16}, {192, 12},
                                             {128, 4}, {64, 4},  {256, 4}};
/// The same whose tokens are multiplied in two parts.
struct PartTile {
  int rows, warps, tokens;
};
constexpr PartTile kPartTiles[] = {{192, 12, 128}, {128, 8, 192}};
constexpr int kTokenParts = 2;
/// The same with tensor memory: a warp has 32 rows.
constexpr WarpgroupTile kTensorTiles[] = {{128, 4}, {256, 8}};
constexpr int kTokensOfTensors[] = {128, 64, 32};
constexpr int kMostOfWarpgroups = 2;  // CTAs of a cluster
// The most tokens of a CTA; fewer only where these have more sums than registers.
constexpr int kTokensOfWarpgroups[] = {256, 192, 128, 64, 32}, kUsualTokens = 128;
// That multiply: of a CTA, and the most of all CTAs of a multiprocessor, of which more have too few
// registers.
constexpr int kFewestWarps = 4, kMostWarps = 16;

/// A warpgroup has registers for the sums of so many tokens, of one unit of rows a warp.
bool has_registers(int tokens, const Problem& problem) {
  const TileSchedule s{.rows = static_cast<int>(kBlock),
                       .tokens = tokens,
                       .columns = 2 * static_cast<int>(kBlock),
                       .warps_n = kUnits,
                       .warps_m = 1,
                       .k_tiles = 1,
                       .route = problem.has_bytes_of_x() ? Route::bytes : Route::multiply_add,
                       .ctas_per_sm = 1,
                       .warpgroups = true};
  return tile_registers(s, problem) <= kMostRegisters;
}

}  // namespace

std::vector<TileSchedule> tile_space(const Decisions& decisions, bool dependent_launch) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  std::vector<TileSchedule> all;
  const bool bytes = problem.has_bytes_of_x();
  const auto least = problem.experts() != nullptr ? kFewestOfItems : kFewestOfTiles;
  if ((problem.m < least && !bytes) || !device.copies_to_shared()) return all;
  // Sums of narrower groups than relative scales have take several times as long. Layers of so few
  // columns have no k-tiles of that many.
  const bool relative = problem.k > kRelativeColumns && no_relative_scales(problem).empty();
  std::vector<ScalePlace> scale_places{relative ? ScalePlace::relative : ScalePlace::usual};
  if (usual_scale_place(problem) == ScalePlace::operands && !bytes) {
    scale_places.push_back(ScalePlace::sums);
  }
  if (problem.groups() > 1 && problem.m >= fewest_of_rounded(problem) &&
      no_rounded_operands(problem).empty()) {
    scale_places.push_back(ScalePlace::rounded);
  }
  // In place takes one more product for each 16 rows of a warp where there is a zero point.
  const bool in_place = problem.weight.element == nullptr && problem.weight.zero == 0;

  const auto stages_tried =
      device.async_copy() ? std::span<const int>(kStages) : kStagesOfCopiesAtOnce;
  const auto add = [&](TileSchedule s) {
    for (const int stages : stages_tried) {
      const int fit = std::min(stages, s.k_tiles);
      if (fit == s.stages) break;
      s.stages = fit;
      for (const Route route : {Route::multiply_add, Route::in_place, Route::bytes}) {
        if ((route == Route::in_place && !in_place) || (route == Route::bytes) != bytes) continue;
        s.route = route;
        for (const ScalePlace place : scale_places) {
          if (place == ScalePlace::rounded && route != Route::multiply_add) continue;
          s.scale_place = place;
          all.push_back(s);
        }
      }
    }
  };
  const auto add_splits = [&](TileSchedule s) {
    const auto tiles =
        ceil_div(round_up(problem.n, kBlock), s.rows) * s.token_tiles * problem.products();
    const auto k_tiles = ceil_div(round_up(problem.k, kBlock), s.columns);
    const auto most = std::min(k_tiles / kFewestTiles, kMostSplits);
    const auto places = device.multiprocessors * (s.warpgroups ? s.ctas_per_sm : 1);
    for (const auto splits : splits_for(tiles, k_tiles, places, most, 2)) {
      // Groups of several k-tiles stay whole.
      const auto sharing = problem.groups() == 1 ? 1 : problem.group_size() / s.columns;
      const auto of_cta = ceil_div(k_tiles, splits);
      s.k_tiles = static_cast<int>(splits > 1 ? round_up(of_cta, std::max<std::int64_t>(sharing, 1))
                                              : of_cta);
      const auto parts = grid_of(s, problem).splits;
      // Larger clusters leave multiprocessors without one.
      const auto largest = s.warpgroups ? kMostOfWarpgroups : device.max_cluster;
      const bool cluster = parts <= largest && s.rows % (2 * parts) == 0;
      s.reduction = parts == 1 ? Reduction::none
                    : cluster  ? Reduction::cluster
                               : Reduction::ordered;
      add(s);
      if (parts > 1 || !s.producers || s.tensor_memory || problem.has_items()) continue;
      for (const auto& [in_tail, splits_of_tail] : tails_of(tiles, k_tiles, places, most, 2)) {
        TileSchedule tailed = s;
        tailed.tail_tiles = static_cast<int>(in_tail);
        tailed.tail_splits = static_cast<int>(splits_of_tail);
        add(tailed);
      }
    }
  };

  const auto of_warpgroups = [&](int rows, int warps, std::int64_t tokens,
                                 std::int64_t token_tiles) {
    return TileSchedule{.rows = rows,
                        .tokens = static_cast<int>(tokens),
                        .columns = 2 * static_cast<int>(kBlock),
                        .warps_n = warps,
                        .warps_m = 1,
                        .dependent_launch = dependent_launch,
                        .ctas_per_sm = 1,
                        .token_tiles = static_cast<int>(raster_tiles(token_tiles, tokens)),
                        .warpgroups = true};
  };

  // Of warpgroups: all tokens of a CTA, in as few tiles as the instruction and its sums allow.
  if (const auto* row = warpgroup_instruction(problem.formats.x, device)) {
    std::int64_t last = 0;
    for (const int most : kTokensOfWarpgroups) {
      const auto token_tiles = ceil_div(problem.m, std::int64_t{most});
      auto tokens = round_up(ceil_div(problem.m, token_tiles), std::int64_t{row->n});
      while (!row->takes_tokens(tokens)) tokens += row->n;
      if (tokens == last) continue;
      if (most < kUsualTokens && has_registers(static_cast<int>(last), problem)) break;
      last = tokens;
      for (const auto& [rows, warps] : kWarpgroupTiles) {
        for (const int columns : {128, bytes ? 256 : 64}) {
          for (const int ctas : {1, 2, 3}) {
            if (ctas * warps > kMostWarps) continue;
            for (const bool producers : {false, true}) {
              auto s = of_warpgroups(rows, warps, tokens, token_tiles);
              s.columns = columns, s.ctas_per_sm = ctas, s.producers = producers;
              add_splits(s);
            }
          }
        }
      }
    }
  }

  // Of sums that are added up to others, as few tiles of more tokens.
  const auto* of_sums = problem.promotes_sums() && problem.m > kUsualTokens
                            ? warpgroup_instruction(problem.formats.x, device)
                            : nullptr;
  if (of_sums != nullptr) {
    for (const auto& [rows, warps, most] : kPartTiles) {
      const auto token_tiles = ceil_div(problem.m, std::int64_t{most});
      const auto tokens =
          round_up(ceil_div(problem.m, token_tiles), std::int64_t{kTokenParts * of_sums->n});
      auto s = of_warpgroups(rows, warps, tokens, token_tiles);
      s.producers = true, s.token_parts = kTokenParts;
      add_splits(s);
    }
  }

  // In tensor memory, which holds one set of sums: where a user asks for what nobody has run.
  const auto* tensors =
      device.unproven ? tensor_memory_instruction(problem.formats.x, device) : nullptr;
  std::int64_t last_of_tensors = 0;
  for (const int most : kTokensOfTensors) {
    if (tensors == nullptr) break;
    const auto token_tiles = ceil_div(problem.m, std::int64_t{most});
    const auto tokens = round_up(ceil_div(problem.m, token_tiles), std::int64_t{tensors->n});
    if (tokens == std::exchange(last_of_tensors, tokens)) continue;
    for (const auto& [rows, warps] : kTensorTiles) {
      auto s = of_warpgroups(rows, warps, tokens, token_tiles);
      s.producers = s.tensor_memory = true;
      add_splits(s);
    }
  }

  // As few tiles of tokens as the most that a CTA has allows, and twice as many.
  const auto fewest = ceil_div(problem.m, std::int64_t{kMostTokensOfCta});
  const auto& instruction =
      *decisions.of(bytes ? Route::bytes : Route::multiply_add).core.instruction;
  const std::int64_t pair = 2 * instruction.n;  // what load-matrix brings
  for (const std::int64_t token_tiles : {fewest, 2 * fewest}) {
    const auto tokens = static_cast<int>(round_up(ceil_div(problem.m, token_tiles), pair));
    if (token_tiles > fewest && tokens < 32) continue;
    for (const WarpTile warp : kWarpTiles) {
      if (tokens % warp.tokens != 0) continue;
      for (const int rows : {256, 128, 64}) {
        const int warps_n = rows / warp.rows, warps_m = tokens / warp.tokens;
        for (const int columns : {128, 64}) {
          for (const int ctas : {1, 2, 3}) {
            const int warps = warps_n * warps_m;
            if (warps < kFewestWarps || warps > kMostWarps || ctas * warps > kMostWarps) continue;
            add_splits({.rows = rows,
                        .tokens = tokens,
                        .columns = columns,
                        .warps_n = warps_n,
                        .warps_m = warps_m,
                        .dependent_launch = dependent_launch,
                        .ctas_per_sm = ctas,
                        .token_tiles = static_cast<int>(raster_tiles(token_tiles, tokens))});
          }
        }
      }
    }
  }
  return all;
}

}  // namespace ladder
