// SPDX-License-Identifier: Apache-2.0
// The space of schedules, and the choice.
#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/schedule.h"
#include "schedule/decisions.h"

namespace ladder {
namespace {

// Rounds that keep registers of their own are written out: more make long texts.
constexpr int kMostDeepRounds = 8;
constexpr int kFewTokens = 8;
// Fewer rounds have all their activations staged at once: starting and reducing is most of them.
constexpr int kFewestFlowingRounds = 8;

struct Warps {
  int n, k;
};

/// The least that the tokens of the expression fill: whole instructions.
int tokens_of(const Decisions& decisions) {
  return static_cast<int>(round_up(decisions.problem.m, decisions.whole.core.instruction->n));
}

/// The fewest row units, from `least` on, of which a lane has whole granules of words.
int whole_units(int least, const Decisions& decisions) {
  const auto granule = decisions.whole.hint.granularity_bytes;
  while (least < kUnits && least * decisions.problem.weight.bits * 4 % granule != 0) least *= 2;
  return least;
}

/// The same with blocks loaded anew one by one where a sweep has rounds to load anew: from 0 to 8 %
/// faster (docs/dev/notebook_gpu.md).
DecodeSchedule block_by_block(DecodeSchedule s, const Decisions& decisions) {
  s.by_blocks = true;
  if (!objection(s, decisions).empty()) s.by_blocks = false;
  return s;
}

/// As many as leave one wave of the `places` for CTAs, of experts also where there are more items
/// than expected; all rows of a product at most.
int sweeps_of(const DecodeSchedule& s, const Problem& problem, int splits, std::int64_t places) {
  const auto tiles = s.tiles(problem.n);
  const auto products = problem.products() + (problem.experts() ? problem.experts()->deviation : 0);
  const auto of_product = std::max<std::int64_t>(places / (products * splits), 1);
  return static_cast<int>(ceil_div(tiles, of_product));
}

/// Every split of K into rounds, through registers or rings of 2 to `stages` rounds.
template <class Add>
void add_rounds(const Problem& problem, int tokens, int blocks, Warps warps, int stages,
                Route route, int resident, const Add& add) {
  for (int splits : {1, 2, 4, 8, 14, 28}) {
    const auto columns = kBlock * blocks * warps.k * splits;
    const auto rounds = static_cast<int>(ceil_div(round_up(problem.k, kBlock), columns));
    if (rounds == 1) continue;
    for (int ring = 1; ring <= stages; ++ring) {
      const auto split = ring == 1 ? Reduction::ordered : Reduction::cluster;
      add({tokens, warps.n, warps.k, blocks, rounds, ring, splits == 1 ? Reduction::none : split,
           route, false, resident});
    }
  }
}

/// Activations that come in rounds, over as many parts of K as fill the device once; two blocks of
/// the image per warp, or one where two do not fit. Rows of more than one wave are for sweeps.
template <class Add>
void add_flowing(const Decisions& decisions, Route route, const Add& add) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  if (!device.copies_to_shared()) return;
  // Zero points of many groups leave no registers for signals: all would spill.
  if (problem.groups() > 1 && problem.group_size() < kBlock &&
      problem.weight.stored_zero != Zero::none)
    return;
  constexpr int kDepth = 2, kRounds = 4;
  for (Warps warps : {Warps{4, 2}, {2, 4}, {1, 8}, {4, 4}}) {
    for (int resident : {1, 2}) {
      for (int blocks : {2, 1}) {
        DecodeSchedule s{tokens_of(decisions), warps.n, warps.k, blocks,  1, 1,
                         Reduction::none,      route,   false,   resident};
        s.depth = kDepth, s.x_rounds = kRounds, s.x_slack = device.signals() ? 1 : 0;
        const auto parts = std::int64_t{device.multiprocessors} * resident /
                           (s.tiles(problem.n) * problem.products());
        if (parts == 0) continue;
        const auto columns = s.round_columns() * parts;
        s.rounds =
            static_cast<int>(round_up(ceil_div(round_up(problem.k, kBlock), columns), kDepth));
        if (s.rounds < kFewestFlowingRounds) continue;
        const auto splits = s.splits(problem.k);
        s.reduction = splits == 1   ? Reduction::none
                      : splits == 2 ? Reduction::cluster
                                    : Reduction::ordered;
        add(s);
        // With whole rows of more than eight tokens it gained in two runs of three.
        if (s.tokens > 8 && splits == 1) {
          if (const auto other = block_by_block(s, decisions); other.by_blocks) add(other);
        }
        if (objection(s, decisions).empty()) break;
      }
    }
  }
}

// Activations by the copy engine, every warp with all the rows of its block: nothing waits for the
// activations before all weights of the first rounds are asked for.
template <class Add>
void add_engine(const Decisions& decisions, int blocks, int splits, Route route, const Add& add) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const int tokens = tokens_of(decisions);
  constexpr int kWarps = 16, kDepth = 2;
  const auto columns = kBlock * blocks * kWarps * splits;
  const auto rounds = static_cast<int>(ceil_div(round_up(problem.k, kBlock), columns));
  if (rounds > kMostDeepRounds) return;
  const auto reduction = splits == 1 ? Reduction::none : Reduction::cluster;
  // Few rows: registers for two blocks a round, and no more than the multiprocessors have work for.
  const int units = whole_units(2, decisions);
  for (int depth : {1, 2}) {
    for (int sharers : {1, 2}) {
      DecodeSchedule s{tokens, 1, kWarps, blocks, rounds, 1, reduction, route, false, 1};
      s.units = units, s.depth = depth, s.sharers = sharers;
      s.sweeps = sweeps_of(s, problem, splits, device.multiprocessors);
      // One warp adds up a sweep while the others go on with the next.
      if (s.sweeps > 1) s.sum_places = 2;
      if (!objection(s, decisions).empty()) s.sum_places = 1;
      add(block_by_block(s, decisions));
      // Activations of few tokens are there before the first weights, two rounds of which are asked
      // for together.
      if (tokens <= kFewTokens || depth != kDepth || sharers == 1) continue;
      s.x_rounds = rounds;
      if (s.sweeps == 1 && rounds > 1) add(s);
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
  const bool both_places = usual_scale_place(problem) == ScalePlace::operands;
  auto add = [&](DecodeSchedule schedule) {
    schedule.dependent_launch = dependent_launch;
    all.push_back(schedule);
    if (!both_places) return;
    schedule.scale_place = ScalePlace::sums;
    all.push_back(schedule);
  };
  for (Route route : {Route::digits, Route::in_place, Route::multiply_add}) {
    // Wider codes gain nothing: memory holds them up, or masks for pairs that lie apart.
    constexpr int kWidestInDigits = 2;
    if (route == Route::digits && (problem.m != 1 || problem.weight.bits > kWidestInDigits))
      continue;
    for (int resident : {1, 2, 3, 4}) {
      // All of a block's weight at once.
      for (int blocks : {1, 2, 4}) {
        for (Warps warps : {Warps{1, 8}, {2, 4}, {1, 4}}) {
          for (Reduction reduction : {Reduction::none, Reduction::cluster, Reduction::ordered}) {
            add({tokens, warps.n, warps.k, blocks, 1, 1, reduction, route, false, resident});
          }
        }
      }
      for (int blocks : {1, 2}) {
        for (Warps warps : {Warps{4, 2}, {4, 1}, {2, 4}, {2, 2}}) {
          add_rounds(problem, tokens, blocks, warps, 3, route, resident, add);
        }
      }
    }
    // More of small blocks hide each other's loads, where decoding takes long.
    if (route == Route::multiply_add && tokens <= kFewTokens) {
      for (int blocks : {1, 2}) {
        for (Warps warps : {Warps{2, 2}, {1, 4}}) {
          add_rounds(problem, tokens, blocks, warps, 1, route, 5, add);
        }
      }
    }
    if (route != Route::digits) add_flowing(decisions, route, add);
    // Rounds kept in registers, over as many rows as fill the device once.
    for (int splits : {1, 2}) {
      for (Warps warps : {Warps{1, 8}, {1, 16}}) {
        const auto columns = kBlock * 2 * warps.k * splits;
        const auto rounds = static_cast<int>(ceil_div(round_up(problem.k, kBlock), columns));
        if (rounds > kMostDeepRounds) continue;
        for (int units : {2, 4}) {
          for (int depth : {2, 4}) {
            for (int resident : {1, 2}) {
              if (depth * resident > 4) continue;  // no registers left to move instructions about
              DecodeSchedule deep{tokens,
                                  warps.n,
                                  warps.k,
                                  2,
                                  rounds,
                                  1,
                                  splits == 1 ? Reduction::none : Reduction::cluster,
                                  route,
                                  false,
                                  resident,
                                  units,
                                  depth};
              const auto at_once = std::int64_t{device.multiprocessors} * resident;
              deep.sweeps = sweeps_of(deep, problem, splits, at_once);
              // A barrier less in each sweep, where there is room.
              if (deep.sweeps > 1) deep.sum_places = 2;
              if (!objection(deep, decisions).empty()) deep.sum_places = 1;
              add(block_by_block(deep, decisions));
            }
          }
        }
      }
    }
  }
  if (device.bulk_copy()) {
    // Rounds of half the size, where words or operands take many registers.
    const bool finer =
        problem.weight.element != nullptr || problem.weight.bits % 2 != 0 || problem.m > 8;
    for (Route route : {Route::in_place, Route::multiply_add}) {
      for (int blocks : {2, 1}) {
        if (blocks == 1 && !finer) continue;
        for (int splits : {1, 2}) add_engine(decisions, blocks, splits, route, add);
      }
    }
  }
  return all;
}

}  // namespace ladder
