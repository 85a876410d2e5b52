// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels of every shape of schedule, small enough to run without a device. Internal to the
// tests.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/integers.h"
#include "expr/constructors.h"
#include "pipelines/schedule.h"
#include "program/cases_in_turn.h"
#include "types/ttype.h"

namespace ladder::testing {

/// Shapes of tiles: [rows, tokens, columns, warps along N, along M, token tiles, stages].
constexpr std::array<std::array<int, 7>, 10> kTileShapes = {{{64, 32, 64, 1, 2, 1, 2},
                                                             {64, 40, 64, 1, 1, 1, 2},
                                                             {64, 32, 128, 2, 1, 1, 3},
                                                             {128, 32, 64, 2, 2, 1, 3},
                                                             {128, 64, 64, 4, 1, 1, 4},
                                                             {64, 48, 64, 2, 3, 1, 3},
                                                             {64, 16, 64, 1, 1, 3, 2},
                                                             {128, 32, 128, 4, 2, 2, 2},
                                                             {64, 32, 192, 2, 1, 2, 3},
                                                             {64, 24, 64, 1, 1, 2, 2}}};
/// The same, of warpgroups.
constexpr std::array<std::array<int, 7>, 7> kWarpgroupShapes = {{{64, 24, 128, 4, 1, 1, 3},
                                                                 {128, 40, 64, 8, 1, 1, 2},
                                                                 {256, 16, 128, 4, 1, 1, 2},
                                                                 {128, 64, 64, 4, 1, 1, 4},
                                                                 {256, 32, 128, 8, 1, 2, 3},
                                                                 {64, 72, 192, 4, 1, 1, 2},
                                                                 {192, 24, 64, 12, 1, 1, 3}}};

/// The same, of bytes: k-tiles of warpgroups have whole panels of 128 columns.
constexpr std::array<std::array<int, 7>, 5> kByteShapes = {{{64, 24, 128, 4, 1, 1, 3},
                                                            {128, 48, 128, 8, 1, 1, 2},
                                                            {256, 16, 256, 4, 1, 1, 2},
                                                            {256, 32, 128, 8, 1, 2, 3},
                                                            {64, 80, 384, 4, 1, 1, 2}}};

/// The same, whose k-tiles have one sum of e4m3, and whose tokens are whole parts.
constexpr std::array<std::array<int, 7>, 4> kPartShapes = {{{64, 48, 128, 4, 1, 1, 3},
                                                            {128, 32, 128, 8, 1, 2, 3},
                                                            {192, 48, 128, 12, 1, 1, 2},
                                                            {64, 16, 128, 4, 1, 3, 4}}};

/// The same, of tokens enough for rounded operands: by warpgroups and by warps.
constexpr std::array<std::array<int, 7>, 5> kRoundedShapes = {{{64, 72, 128, 4, 1, 1, 3},
                                                               {128, 80, 64, 8, 1, 1, 2},
                                                               {256, 40, 128, 8, 1, 2, 3},
                                                               {256, 72, 192, 16, 1, 1, 2},
                                                               {192, 40, 64, 12, 1, 2, 3}}};
constexpr std::array<std::array<int, 7>, 2> kRoundedByWarps = {
    {{64, 96, 64, 2, 3, 1, 3}, {128, 48, 128, 4, 2, 2, 2}}};

/// A schedule of that shape for the type, whose parts of K are added up so, or nothing where the
/// tile objects.
inline std::vector<std::pair<Problem, TileSchedule>> tile_case(
    const std::array<int, 7>& shape, const TType& type, Scalar activation, Reduction reduction,
    Route route, bool dependent, int k_tiles = 3, bool warpgroups = false,
    std::optional<RoundedX> x = {}, ScalePlace place = ScalePlace::usual) {
  const auto& [rows, tokens, columns, warps_n, warps_m, token_tiles, stages] = shape;
  TileSchedule s{.rows = rows,
                 .tokens = tokens,
                 .columns = columns,
                 .warps_n = warps_n,
                 .warps_m = warps_m,
                 .k_tiles = k_tiles,
                 .stages = stages,
                 .reduction = reduction,
                 .route = route,
                 .dependent_launch = dependent,
                 .ctas_per_sm = 1,
                 .token_tiles = token_tiles,
                 .warpgroups = warpgroups,
                 .scale_place = place};
  // The last rows, and the last columns of the last part, are no whole tiles.
  const auto k = columns * k_tiles * (reduction == Reduction::none ? 1 : 2) - 32;
  Problem problem = linear_of(type, rows + 40, k, activation, tokens * token_tiles - 3);
  problem.round_x(x);
  // Groups of several k-tiles are whole in each part.
  if (problem.groups() > 1 && problem.group_size() > columns) s.k_tiles = round_up(k_tiles, 2);
  if (!objection(s, decide(problem, device("h200"))).empty()) return {};
  return {{problem, s}};
}

/// The same with producers, of as many stages as these take.
inline std::vector<std::pair<Problem, TileSchedule>> with_producers(
    const std::vector<std::pair<Problem, TileSchedule>>& cases) {
  std::vector<std::pair<Problem, TileSchedule>> out;
  for (auto [problem, s] : cases) {
    s.producers = true, s.stages = std::max(s.stages, 3);
    if (objection(s, decide(problem, device("h200"))).empty()) out.push_back({problem, s});
  }
  return out;
}

/// use(problem, schedule) of tiles of bytes, by warps and by warpgroups, with producers and
/// without: of each shape, reductions, activations and biases in turn.
template <class Use>
void for_each_tile_of_bytes(const TType& type, RoundedX x, ScalePlace place, const Use& use) {
  unsigned turn = 0;
  const auto run = [&](const auto& shapes, bool warpgroups) {
    for (const auto& shape : shapes) {
      const auto reduction = static_cast<Reduction>(++turn % 3);
      auto cases = tile_case(shape, type, turn % 2 == 0 ? Scalar::f16 : Scalar::bf16, reduction,
                             Route::bytes, false, 3, warpgroups, x, place);
      if (warpgroups) {
        const auto producers = with_producers(cases);
        cases.insert(cases.end(), producers.begin(), producers.end());
      }
      for (auto& [problem, schedule] : cases) {
        problem.set_bias(turn % 2 == 0);
        use(problem, schedule);
      }
    }
  };
  run(kTileShapes, false);
  run(kByteShapes, true);
}

/// The same in parts of the tokens: two, or three.
inline std::vector<std::pair<Problem, TileSchedule>> in_parts(
    const std::vector<std::pair<Problem, TileSchedule>>& cases) {
  std::vector<std::pair<Problem, TileSchedule>> out;
  for (auto [problem, s] : cases) {
    for (const int parts : {2, 3}) {
      s.token_parts = parts;
      if (objection(s, decide(problem, device("h200"))).empty()) out.push_back({problem, s});
    }
  }
  return out;
}

/// One of each shape and reduction, types and what else a layer has in turn.
inline std::vector<std::pair<Problem, TileSchedule>> tile_cases(int k_tiles = 3) {
  std::vector<std::pair<Problem, TileSchedule>> out;
  for (const bool warpgroups : {false, true}) {
    const auto make = [&](const auto& shape, const TType& type, Scalar activation,
                          Reduction reduction, unsigned turn) {
      return tile_case(shape, type, activation, reduction, Route::multiply_add, turn % 3 == 0,
                       k_tiles, warpgroups);
    };
    static constexpr std::initializer_list<Reduction> reductions = {
        Reduction::none, Reduction::cluster, Reduction::ordered};
    const auto cases = warpgroups ? cases_in_turn<TileSchedule>(kWarpgroupShapes, reductions, make)
                                  : cases_in_turn<TileSchedule>(kTileShapes, reductions, make);
    out.insert(out.end(), cases.begin(), cases.end());
    if (!warpgroups) continue;
    const auto producers = with_producers(cases);
    out.insert(out.end(), producers.begin(), producers.end());
  }
  return out;
}

}  // namespace ladder::testing
