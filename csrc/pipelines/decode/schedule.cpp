// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/schedule.h"

#include <algorithm>
#include <numeric>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/spelling.h"

namespace ladder {

std::int64_t DecodeSchedule::splits(std::int64_t k) const {
  return ceil_div(round_up(k, kBlock), block_columns());
}
std::int64_t DecodeSchedule::tiles(std::int64_t n) const {
  const auto rows = block_rows() * sweeps;
  // Whole blocks of the image, so that a tile has the same part of its block in every sweep.
  return round_up(ceil_div(round_up(n, kBlock), rows),
                  std::lcm(kUnits / units, std::max(sharers, 1)));
}

namespace {

struct Spelling {
  template <class Schedule, class Text>
  static void spell(Schedule& s, Text& text) {
    text.number("tokens ", s.tokens);
    text.number(", warps ", s.warps_n);
    text.number("x", s.warps_k);
    text.number(", blocks ", s.blocks_per_warp);
    text.number(", rounds ", s.rounds);
    text.number(", stages ", s.stages);
    text.name(", ", s.reduction, kReductions);
    text.name(", ", s.route, kRoutes);
    text.number(", units ", s.units, kUnits);
    text.number(", depth ", s.depth, 0);
    text.number(", sweeps ", s.sweeps, 1);
    text.number(", sum places ", s.sum_places, 1);
    text.number(", x rounds ", s.x_rounds, 0);
    text.number(", x slack ", s.x_slack, 0);
    text.number(", engine for ", s.sharers, 0);
    text.flag(", block by block", s.by_blocks);
    text.name("", s.scale_place, kScalePlaces);
    text.flag(", dependent launch", s.dependent_launch);
    text.number(", ", s.blocks_per_multiprocessor);
    text.end(" per multiprocessor");
  }
};

}  // namespace

CtaGrid grid_of(const DecodeSchedule& s, const Problem& problem) {
  return {.tiles = s.tiles(problem.n), .token_tiles = 1, .splits = s.splits(problem.k)};
}

std::string to_string(const DecodeSchedule& schedule) { return spelled<Spelling>(schedule); }

std::optional<DecodeSchedule> decode_schedule_of(std::string_view text) {
  return read_schedule<Spelling, DecodeSchedule>(text);
}

}  // namespace ladder
