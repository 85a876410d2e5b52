// SPDX-License-Identifier: Apache-2.0
//
// Wave kernels of every shape of schedule, small enough to run without a device. Internal to the
// tests.
#pragma once

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

/// Shapes of waves: [tokens, columns, waves along N, M, K, token tiles, stages].
constexpr std::array<std::array<int, 7>, 10> kWaveShapes = {{{16, 64, 1, 1, 1, 1, 2},
                                                             {16, 128, 2, 1, 1, 1, 2},
                                                             {16, 64, 1, 1, 4, 1, 2},
                                                             {32, 64, 2, 1, 2, 1, 2},
                                                             {64, 64, 1, 2, 1, 1, 2},
                                                             {32, 128, 1, 2, 1, 2, 2},
                                                             {48, 64, 1, 1, 1, 2, 2},
                                                             {16, 256, 1, 1, 2, 1, 2},
                                                             {128, 64, 2, 4, 1, 1, 2},
                                                             {32, 64, 1, 1, 2, 1, 1}}};
/// Of a workgroup of 256 tokens, of which two stages would be too many, and of a wave of 128.
constexpr std::array<std::array<int, 7>, 2> kLargeWaveShapes = {
    {{256, 64, 2, 4, 1, 1, 1}, {128, 64, 1, 1, 1, 2, 2}}};

/// A schedule of that shape for the type, or nothing where waves object on the device.
inline std::vector<std::pair<Problem, WaveSchedule>> wave_case(
    const std::array<int, 7>& shape, const TType& type, Scalar activation, Reduction reduction,
    Route route, const Device& device, int k_tiles = 3, std::optional<Scalar> x = {},
    ScalePlace place = ScalePlace::usual) {
  const auto& [tokens, columns, waves_n, waves_m, waves_k, token_tiles, stages] = shape;
  WaveSchedule s{.tokens = tokens,
                 .columns = columns,
                 .waves_n = waves_n,
                 .waves_m = waves_m,
                 .waves_k = waves_k,
                 .k_tiles = k_tiles,
                 .reduction = reduction,
                 .route = route,
                 .groups_per_cu = 1,
                 .token_tiles = token_tiles,
                 .stages = stages,
                 .scale_place = place};
  // The last rows, and the last columns of the last part, are no whole tiles.
  const auto k = s.tile_columns() * k_tiles * (reduction == Reduction::none ? 1 : 2) - 32;
  Problem problem = linear_of(type, s.rows() + 40, k, activation, tokens * token_tiles - 3);
  problem.round_x(x);
  // Groups of several k-tiles are whole in each part.
  if (problem.groups() > 1 && problem.group_size() > s.tile_columns())
    s.k_tiles = round_up(k_tiles, 2);
  const auto decisions = decide(problem, device);
  if (!objection(s, decisions).empty()) s.behind = device.warp < kWaveLanes;
  if (!objection(s, decisions).empty() && !x && place == ScalePlace::usual) {
    s.scale_place = ScalePlace::sums;
  }
  if (!objection(s, decisions).empty()) return {};
  return {{problem, s}};
}

/// One of each shape and reduction, types and what else a layer has in turn.
inline std::vector<std::pair<Problem, WaveSchedule>> wave_cases(const Device& device,
                                                                int k_tiles = 3) {
  const auto make = [&](const auto& shape, const TType& type, Scalar activation,
                        Reduction reduction, unsigned) {
    return wave_case(shape, type, activation, reduction, Route::multiply_add, device, k_tiles);
  };
  return cases_in_turn<WaveSchedule>(kWaveShapes, {Reduction::none, Reduction::ordered}, make);
}

/// Schedules of few tokens in turn, or nothing where waves object to each of the type.
inline std::vector<std::pair<Problem, WaveSchedule>> few_tokens_case(const TType& type,
                                                                     Scalar activation,
                                                                     WaveProducts products,
                                                                     unsigned turn,
                                                                     const Device& machine) {
  // Columns, waves along N and K.
  constexpr std::array<std::array<int, 3>, 4> kShapes = {
      {{64, 1, 4}, {128, 2, 2}, {64, 2, 1}, {256, 1, 1}}};
  const auto& [columns, waves_n, waves_k] = kShapes[turn % kShapes.size()];
  WaveSchedule s{.tokens = products == WaveProducts::dots ? 1 : 4,
                 .columns = columns,
                 .waves_n = waves_n,
                 .waves_m = 1,
                 .waves_k = waves_k,
                 .k_tiles = 2,
                 .reduction = turn % 2 == 0 ? Reduction::none : Reduction::ordered,
                 .route = turn % 3 == 0 ? Route::in_place : Route::multiply_add,
                 .groups_per_cu = 1,
                 .products = products};
  const auto k = s.tile_columns() * s.k_tiles * (s.reduction == Reduction::none ? 1 : 2) - 32;
  Problem problem = linear_of(type, s.rows() + 40, k, activation,
                              products == WaveProducts::dots ? 1 : 1 + turn % 4);
  problem.set_bias(turn % 2 == 0), problem.permuted_columns = turn % 5 == 0;
  const auto decisions = decide(problem, machine);
  for (const Route route : {s.route, Route::multiply_add}) {
    for (const auto place : {ScalePlace::usual, ScalePlace::sums}) {
      s.route = route, s.scale_place = place;
      if (objection(s, decisions).empty()) return {{problem, s}};
    }
  }
  return {};
}

/// Some of both kinds of few tokens, each with and without parts of K.
inline std::vector<std::pair<Problem, WaveSchedule>> few_tokens_cases(const Device& machine) {
  std::vector<std::pair<Problem, WaveSchedule>> out;
  for (const unsigned turn : {1U, 2U}) {
    for (const auto products : {WaveProducts::blocks, WaveProducts::dots}) {
      for (const auto& of_few : few_tokens_case(ttype("uint4,group=64,scale=float16"), Scalar::f16,
                                                products, turn, machine)) {
        out.push_back(of_few);
      }
    }
  }
  return out;
}

}  // namespace ladder::testing
