// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/schedule.h"

#include <numeric>
#include <type_traits>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/spelling.h"
#include "program/program.h"

namespace ladder {

int DecodeSchedule::k_tiles() const {
  return std::visit(Match{[](const weights::AtOnce&) { return 1; },
                          [](const auto& several) { return several.k_tiles; }},
                    weights);
}

int DecodeSchedule::tiles_per_cta() const {
  return register_stages() != nullptr ? register_stages()->tiles_per_cta : 1;
}

int DecodeSchedule::reduction_buffers() const {
  return register_stages() != nullptr ? register_stages()->reduction_buffers : 1;
}

int DecodeSchedule::activation_stages() const {
  return std::visit(Match{[](const activations::AtOnce&) { return 0; },
                          [](const activations::Staged& x) { return x.stages; },
                          [](const activations::Signalled& x) { return x.stages; },
                          [](const activations::BulkCopy&) { return 0; }},
                    activations);
}

std::int64_t DecodeSchedule::splits(std::int64_t k) const {
  return ceil_div(round_up(k, kBlock), cta_columns());
}

std::int64_t DecodeSchedule::tiles(std::int64_t n) const {
  const auto rows = tile_rows() * tiles_per_cta();
  // Whole blocks of the image, so that every tile of a CTA has the same part of its block.
  return round_up(
      ceil_div(round_up(n, kBlock), rows),
      std::lcm(kUnits / m16_tiles, bulk_copy() != nullptr ? bulk_copy()->multicast : 1));
}

namespace {

/// What is read into, or printed.
template <class Text, class Way>
using Spelled = std::conditional_t<std::is_same_v<Text, Printer>, const Way&, Way&>;

struct WaySpelling {
  template <class Text>
  static void spell(Spelled<Text, weights::AtOnce> /*way*/, Text& text) {
    text.literal(", one k-tile");
  }
  template <class Text>
  static void spell(Spelled<Text, weights::DoubleBuffered> way, Text& text) {
    text.number(", k-tiles ", way.k_tiles);
  }
  template <class Text>
  static void spell(Spelled<Text, weights::Ring> way, Text& text) {
    text.number(", k-tiles ", way.k_tiles);
    text.number(", stages ", way.stages);
  }
  template <class Text>
  static void spell(Spelled<Text, weights::RegisterStages> way, Text& text) {
    text.number(", k-tiles ", way.k_tiles);
    text.number(", register stages ", way.stages);
    text.flag(", block by block", way.block_by_block);
    text.number(", tiles per CTA ", way.tiles_per_cta, 1);
    text.number(", reduction buffers ", way.reduction_buffers, 1);
  }
  template <class Text>
  static void spell(Spelled<Text, activations::AtOnce> /*way*/, Text& /*text*/) {}
  template <class Text>
  static void spell(Spelled<Text, activations::Staged> way, Text& text) {
    text.number(", activation stages ", way.stages);
  }
  template <class Text>
  static void spell(Spelled<Text, activations::Signalled> way, Text& text) {
    text.number(", activation stages ", way.stages);
    text.number(", consumer lag ", way.consumer_lag);
  }
  template <class Text>
  static void spell(Spelled<Text, activations::BulkCopy> way, Text& text) {
    text.literal(", bulk copy");
    text.flag(" by k-tiles", way.by_k_tiles);
    text.number(", multicast ", way.multicast);
  }
};

struct Spelling {
  template <class Schedule, class Text>
  static void spell(Schedule& s, Text& text) {
    text.number("tokens ", s.tokens);
    text.number(", warps ", s.warps_n);
    text.number("x", s.warps_k);
    text.number(", m16 tiles ", s.m16_tiles, kUnits);
    text.number(", blocks ", s.blocks_per_warp);
    text.template one_of<WaySpelling>(s.weights);
    text.template one_of<WaySpelling>(s.activations);
    text.name(", ", s.reduction, kReductions);
    text.name(", ", s.route, kRoutes);
    text.name("", s.scale_place, kScalePlaces);
    text.flag(", dependent launch", s.dependent_launch);
    text.number(", ", s.ctas_per_sm);
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
