// SPDX-License-Identifier: Apache-2.0
// The space of wave kernels.
#include <algorithm>
#include <utility>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/linear/objection.h"
#include "pipelines/linear/raster.h"
#include "pipelines/linear/splits.h"
#include "pipelines/waves/schedule.h"
#include "program/alternate.h"

namespace ladder {
namespace {

constexpr int kToken = 16;  // of an instruction
constexpr int kMostWaves = 8;
// The sums of kMostTokensOfWave are half of the registers that a wave can name.
constexpr int kTokensOfWave = 64, kMostTokensOfWave = 128;
constexpr std::int64_t kMostTokensOfGroup = 256;
constexpr std::int64_t kMostSplits = 32;
// Of a workgroup whose waves may alternate: products of fewer are too short to hide what the other
// half does.
constexpr std::int64_t kFewestRowsOfPhases = 256, kFewestTokensOfPhases = 128;

}  // namespace

std::vector<WaveSchedule> wave_space(const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  std::vector<WaveSchedule> all;
  const bool in_place = problem.weight.element == nullptr && problem.weight.zero == 0;
  std::vector<ScalePlace> scale_places{ScalePlace::usual};
  if (!problem.has_bytes_of_x()) {
    if (usual_scale_place(problem) == ScalePlace::operands) {
      scale_places.push_back(ScalePlace::sums);
    }
    if (problem.groups() > 1 && problem.m >= fewest_of_rounded(problem) &&
        no_rounded_operands(problem).empty()) {
      scale_places.push_back(ScalePlace::rounded);
    }
  }

  const auto add = [&](WaveSchedule s) {
    for (const Route route : {Route::multiply_add, Route::in_place, Route::bytes}) {
      if ((route == Route::bytes) != problem.has_bytes_of_x()) continue;
      if (route == Route::in_place && !in_place) continue;
      s.route = route;
      for (const ScalePlace place : scale_places) {
        if (place == ScalePlace::rounded && route != Route::multiply_add) continue;
        s.scale_place = place;
        all.push_back(s);
      }
    }
  };
  const auto add_splits = [&](WaveSchedule s) {
    const auto tiles =
        ceil_div(round_up(problem.n, kBlock), s.rows()) * s.token_tiles * problem.products();
    const auto k_tiles = ceil_div(round_up(problem.k, kBlock), s.tile_columns());
    const auto places = std::int64_t{device.multiprocessors} * s.groups_per_cu;
    for (const auto splits :
         splits_for(tiles, k_tiles, places, std::min(k_tiles, kMostSplits), 3)) {
      // Groups of several k-tiles stay whole.
      const auto sharing = problem.groups() == 1
                               ? 1
                               : std::max<std::int64_t>(problem.group_size() / s.tile_columns(), 1);
      const auto of_group = ceil_div(k_tiles, splits);
      s.k_tiles = static_cast<int>(splits > 1 ? round_up(of_group, sharing) : of_group);
      s.reduction = grid_of(s, problem).splits == 1 ? Reduction::none : Reduction::ordered;
      add(s);
    }
  };

  const auto add_few = [&](WaveProducts products, int tokens) {
    if (instruction_of({.products = products}, decisions) == nullptr) return;
    for (const int waves_n : {1, 2}) {
      for (const int waves_k : {1, 2, 4, 8}) {
        for (const int columns : {64, 128, 256}) {
          for (const int per_cu : {1, 2, 4, 8}) {
            const int waves = waves_n * waves_k;
            if (waves > kMostWaves || waves * per_cu < device.schedulers || waves * per_cu > 16) {
              continue;
            }
            add_splits({.tokens = tokens,
                        .columns = columns,
                        .waves_n = waves_n,
                        .waves_m = 1,
                        .waves_k = waves_k,
                        .groups_per_cu = per_cu,
                        .products = products});
          }
        }
      }
    }
  };
  if (problem.m == 1 && !problem.has_bytes_of_x()) add_few(WaveProducts::dots, 1);
  if (problem.m <= 4 && !problem.has_bytes_of_x()) add_few(WaveProducts::blocks, 4);

  // More groups of columns have more scales than registers.
  const bool narrow = problem.groups() > 1 && problem.group_size() < kBlock;
  // Of waves that share rows, each of which decodes them.
  const int fewest = device.warp == kWaveLanes && !narrow ? 2 * kToken : kToken;
  const auto add_tokens = [&](int of_group, int token_tiles) {
    for (const int waves_m : {1, 2, 4}) {
      const int of_wave = of_group / waves_m;
      if (of_group % (kToken * waves_m) != 0 || of_wave > kMostTokensOfWave) continue;
      if (waves_m > 1 && of_wave < fewest) continue;
      for (const int waves_n : {1, 2, 4}) {
        for (const int waves_k : {1, 2, 4, 8}) {
          const int waves = waves_n * waves_m * waves_k;
          if (waves > kMostWaves || (waves_k > 1 && waves_m > 1)) continue;
          for (const int columns : {64, 128, 256}) {
            if (narrow && columns > kBlock) continue;
            for (const int per_cu : {1, 2, 4, 8}) {
              // From one wave for each SIMD to all that there is room for.
              const auto resident = waves * kWaveLanes / device.warp * per_cu;
              if (resident < device.schedulers || waves * per_cu > 16) continue;
              WaveSchedule s{.tokens = of_group,
                             .columns = columns,
                             .waves_n = waves_n,
                             .waves_m = waves_m,
                             .waves_k = waves_k,
                             .groups_per_cu = per_cu,
                             .token_tiles = token_tiles};
              const auto bytes = static_cast<double>(shared_bytes(s, problem) * per_cu);
              s.stages = bytes < device.shared.capacity_bytes ? 2 : 1;
              add_splits(s);
              if (waves == kHalves * device.schedulers && per_cu == 1 && waves_k == 1 &&
                  device.warp == kWaveLanes && s.rows() >= kFewestRowsOfPhases &&
                  s.tokens >= kFewestTokensOfPhases) {
                // Behind its twin, which costs the same: nobody has measured by how much.
                s.alternate = true, s.stages = 1;
                add_splits(s);
              }
              if (device.warp == kWaveLanes) continue;
              s.behind = true;
              add_splits(s);
            }
          }
        }
      }
    }
  };

  if (problem.m <= kMostTokensOfGroup) {
    for (const int token_tiles : {1, 2, 4, 8}) {
      const auto of_group = round_up(ceil_div(problem.m, std::int64_t{token_tiles}), kToken);
      if (token_tiles == 1 || of_group >= fewest) {
        add_tokens(static_cast<int>(of_group), token_tiles);
      }
    }
    return all;
  }
  // Tiles as large as a workgroup takes, and some that more compute units share.
  std::int64_t last = 0;
  for (std::int64_t most = kMostTokensOfGroup; most >= kTokensOfWave; most /= 2) {
    const auto token_tiles = ceil_div(problem.m, most);
    const auto of_group = round_up(ceil_div(problem.m, token_tiles), std::int64_t{kTokensOfWave});
    if (of_group == std::exchange(last, of_group)) continue;
    add_tokens(static_cast<int>(of_group), static_cast<int>(raster_tiles(token_tiles, of_group)));
  }
  return all;
}

}  // namespace ladder
