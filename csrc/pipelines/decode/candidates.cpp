// SPDX-License-Identifier: Apache-2.0
// The space of schedules, and the choice.
#include <algorithm>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/schedule.h"
#include "schedule/decisions.h"
#include "schedule/fitted.h"

namespace ladder {
namespace {

// K-tiles in register stages are written out: more make long texts.
constexpr int kMostKTiles = 8;
constexpr int kFewTokens = 8;
// Activations of fewer k-tiles are staged at once: starting and reducing is most of them.
constexpr int kFewestOfStagedActivations = 8;

struct Warps {
  int n, k;
};

/// The least that the tokens of the expression fill: whole instructions.
int tokens_of(const Decisions& decisions) {
  return static_cast<int>(round_up(decisions.problem.m, decisions.whole.core.instruction->n));
}

/// The fewest m16 tiles, from `least` on, of which a lane has whole granules of words.
int whole_m16_tiles(int least, const Decisions& decisions) {
  const auto granule = decisions.whole.hint.granularity_bytes;
  while (least < kUnits && least * decisions.problem.weight.bits * 4 % granule != 0) least *= 2;
  return least;
}

/// Of a CTA with so many columns of each of its k-tiles, over so many splits of K.
int k_tiles_of(const Problem& problem, std::int64_t columns, int splits) {
  return static_cast<int>(ceil_div(round_up(problem.k, kBlock), columns * splits));
}

/// The same with blocks loaded anew one by one where a tile of rows has k-tiles to load anew: from
/// 0 to 8 % faster (docs/dev/notebook_gpu.md).
DecodeSchedule block_by_block(const DecodeSchedule& s, const Decisions& decisions) {
  DecodeSchedule out = s;
  std::get<weights::RegisterStages>(out.weights).block_by_block = true;
  return objection(out, decisions).empty() ? out : s;
}

/// The same with as many tiles per CTA as leave one wave of the `places` for CTAs, of experts also
/// where there are more items than expected; all rows of a product at most.
DecodeSchedule persistent(const DecodeSchedule& s, const Decisions& decisions, int splits,
                          std::int64_t places) {
  const Problem& problem = decisions.problem;
  const auto products = problem.products() + (problem.experts() ? problem.experts()->deviation : 0);
  const double share = problem.has_items() && splits > 1 ? fitted::kInClusters : 1;
  const auto usable = static_cast<std::int64_t>(static_cast<double>(places) * share);
  const auto of_product = std::max<std::int64_t>(usable / (products * splits), 1);
  DecodeSchedule out = s;
  auto& stages = std::get<weights::RegisterStages>(out.weights);
  stages.tiles_per_cta = static_cast<int>(ceil_div(s.tiles(problem.n), of_product));
  // One warp adds up a tile while the others go on with the next: a barrier less in each, where
  // there is room.
  if (stages.tiles_per_cta > 1) stages.reduction_buffers = 2;
  if (!objection(out, decisions).empty()) stages.reduction_buffers = 1;
  return out;
}

/// Every split of K into k-tiles, through registers or rings of 2 to `most_stages`.
template <class Add>
void add_k_tiles(const Problem& problem, DecodeSchedule s, int most_stages, const Add& add) {
  for (int splits : {1, 2, 4, 8, 14, 28}) {
    const auto k_tiles = k_tiles_of(problem, s.k_tile_columns(), splits);
    if (k_tiles == 1) continue;
    s.weights = weights::DoubleBuffered{.k_tiles = k_tiles};
    s.reduction = splits == 1 ? Reduction::none : Reduction::ordered;
    add(s);
    for (int stages = 2; stages <= most_stages; ++stages) {
      s.weights = weights::Ring{.k_tiles = k_tiles, .stages = stages};
      s.reduction = splits == 1 ? Reduction::none : Reduction::cluster;
      add(s);
    }
  }
}

/// Activations in stages, over as many parts of K as fill the device once; two blocks of the image
/// per warp, or one where two do not fit. Rows of more than one wave are for several tiles per CTA.
template <class Add>
void add_staged(const Decisions& decisions, Route route, const Add& add) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  if (!device.copies_to_shared()) return;
  // Zero points of many groups leave no registers for signals: all would spill.
  if (problem.groups() > 1 && problem.group_size() < kBlock &&
      problem.weight.stored_zero != Zero::none)
    return;
  constexpr int kRegisterStages = 2, kActivationStages = 4;
  for (Warps warps : {Warps{4, 2}, {2, 4}, {1, 8}, {4, 4}}) {
    for (int resident : {1, 2}) {
      for (int blocks : {2, 1}) {
        DecodeSchedule s{.tokens = tokens_of(decisions),
                         .warps_n = warps.n,
                         .warps_k = warps.k,
                         .blocks_per_warp = blocks,
                         .route = route,
                         .ctas_per_sm = resident};
        if (device.signals()) {
          s.activations = activations::Signalled{.stages = kActivationStages, .consumer_lag = 1};
        } else {
          s.activations = activations::Staged{.stages = kActivationStages};
        }
        const auto parts = std::int64_t{device.multiprocessors} * resident /
                           (s.tiles(problem.n) * problem.products());
        if (parts == 0) continue;
        const auto columns = s.k_tile_columns() * parts;
        const auto k_tiles = static_cast<int>(
            round_up(ceil_div(round_up(problem.k, kBlock), columns), kRegisterStages));
        if (k_tiles < kFewestOfStagedActivations) continue;
        s.weights = weights::RegisterStages{.k_tiles = k_tiles, .stages = kRegisterStages};
        const auto splits = s.splits(problem.k);
        s.reduction = splits == 1   ? Reduction::none
                      : splits == 2 ? Reduction::cluster
                                    : Reduction::ordered;
        add(s);
        // With whole rows of more than eight tokens it gained in two runs of three.
        if (s.tokens > 8 && splits == 1) {
          if (const auto other = block_by_block(s, decisions); other != s) add(other);
        }
        if (objection(s, decisions).empty()) break;
      }
    }
  }
}

// Activations by bulk copy, every warp with all the rows of its CTA: nothing waits for the
// activations before all weights of the first k-tiles are asked for.
template <class Add>
void add_bulk_copy(const Decisions& decisions, int blocks, int splits, Route route,
                   const Add& add) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  constexpr int kWarps = 16, kMostStages = 2;
  // Few rows: registers for two blocks a k-tile, and no more than the multiprocessors have work
  // for.
  DecodeSchedule s{.tokens = tokens_of(decisions),
                   .warps_n = 1,
                   .warps_k = kWarps,
                   .blocks_per_warp = blocks,
                   .m16_tiles = whole_m16_tiles(2, decisions),
                   .reduction = splits == 1 ? Reduction::none : Reduction::cluster,
                   .route = route};
  const auto k_tiles = k_tiles_of(problem, s.k_tile_columns(), splits);
  if (k_tiles > kMostKTiles) return;
  for (int stages = 1; stages <= kMostStages; ++stages) {
    for (int multicast : {1, 2}) {
      s.weights = weights::RegisterStages{.k_tiles = k_tiles, .stages = stages};
      s.activations = activations::BulkCopy{.multicast = multicast};
      auto whole = persistent(s, decisions, splits, device.multiprocessors);
      add(block_by_block(whole, decisions));
      // Activations of few tokens are there before the first weights, two k-tiles of which are
      // asked for together.
      if (s.tokens <= kFewTokens || stages != kMostStages || multicast == 1) continue;
      whole.activations = activations::BulkCopy{.multicast = multicast, .by_k_tiles = true};
      if (whole.tiles_per_cta() == 1 && k_tiles > 1) add(whole);
    }
  }
}

/// K-tiles in register stages, over as many rows as fill the device once.
template <class Add>
void add_register_stages(const Decisions& decisions, Route route, const Add& add) {
  const Problem& problem = decisions.problem;
  for (int splits : {1, 2}) {
    for (Warps warps : {Warps{1, 8}, {1, 16}}) {
      for (int m16_tiles : {2, 4}) {
        for (int stages : {2, 4}) {
          for (int resident : {1, 2}) {
            if (stages * resident > 4) continue;  // no registers left to move instructions about
            DecodeSchedule s{.tokens = tokens_of(decisions),
                             .warps_n = warps.n,
                             .warps_k = warps.k,
                             .blocks_per_warp = 2,
                             .m16_tiles = m16_tiles,
                             .reduction = splits == 1 ? Reduction::none : Reduction::cluster,
                             .route = route,
                             .ctas_per_sm = resident};
            const auto k_tiles = k_tiles_of(problem, s.k_tile_columns(), splits);
            if (k_tiles > kMostKTiles) continue;
            s.weights = weights::RegisterStages{.k_tiles = k_tiles, .stages = stages};
            const auto places = std::int64_t{decisions.device->multiprocessors} * resident;
            add(block_by_block(persistent(s, decisions, splits, places), decisions));
          }
        }
      }
    }
  }
}

}  // namespace

std::vector<DecodeSchedule> decode_space(const Decisions& decisions, bool dependent_launch) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  std::vector<DecodeSchedule> all;
  if (problem.m > kMostDecodeTokens) return all;
  const int tokens = tokens_of(decisions);
  // Operands with scales of wider groups are there to ask for: nothing measured favours them.
  std::optional<ScalePlace> other_place;
  if (usual_scale_place(problem) == ScalePlace::operands) {
    other_place = ScalePlace::sums;
  } else if (problem.groups() > 1 && joins_powers(problem)) {
    other_place = ScalePlace::rounded;
  }
  auto add = [&](DecodeSchedule schedule) {
    schedule.dependent_launch = dependent_launch;
    all.push_back(schedule);
    if (!other_place ||
        (other_place == ScalePlace::rounded && schedule.route != Route::multiply_add))
      return;
    schedule.scale_place = *other_place;
    all.push_back(schedule);
  };
  for (Route route : {Route::digits, Route::in_place, Route::multiply_add}) {
    // Wider codes gain nothing: memory holds them up, or masks for pairs that lie apart.
    constexpr int kWidestInDigits = 2;
    if (route == Route::digits && (problem.m != 1 || problem.weight.bits > kWidestInDigits))
      continue;
    DecodeSchedule s{.tokens = tokens, .route = route};
    for (int resident : {1, 2, 3, 4}) {
      s.ctas_per_sm = resident;
      // All of a CTA's weight at once.
      s.weights = weights::AtOnce{};
      for (int blocks : {1, 2, 4}) {
        for (Warps warps : {Warps{1, 8}, {2, 4}, {1, 4}}) {
          s.blocks_per_warp = blocks, s.warps_n = warps.n, s.warps_k = warps.k;
          for (Reduction reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
            s.reduction = reduction;
            add(s);
          }
        }
      }
      for (int blocks : {1, 2}) {
        for (Warps warps : {Warps{4, 2}, {4, 1}, {2, 4}, {2, 2}}) {
          s.blocks_per_warp = blocks, s.warps_n = warps.n, s.warps_k = warps.k;
          add_k_tiles(problem, s, 3, add);
        }
      }
    }
    // More of small CTAs hide each other's loads, where decoding takes long.
    if (route == Route::multiply_add && tokens <= kFewTokens) {
      s.ctas_per_sm = 5;
      for (int blocks : {1, 2}) {
        for (Warps warps : {Warps{2, 2}, {1, 4}}) {
          s.blocks_per_warp = blocks, s.warps_n = warps.n, s.warps_k = warps.k;
          add_k_tiles(problem, s, 1, add);
        }
      }
    }
    if (route != Route::digits) add_staged(decisions, route, add);
    add_register_stages(decisions, route, add);
  }
  if (device.bulk_copy()) {
    // K-tiles of half the size, where words or operands take many registers.
    const bool finer =
        problem.weight.element != nullptr || problem.weight.bits % 2 != 0 || problem.m > 8;
    for (Route route : {Route::in_place, Route::multiply_add}) {
      for (int blocks : {2, 1}) {
        if (blocks == 1 && !finer) continue;
        for (int splits : {1, 2}) add_bulk_copy(decisions, blocks, splits, route, add);
      }
    }
  }
  return all;
}

}  // namespace ladder
