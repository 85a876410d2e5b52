// SPDX-License-Identifier: Apache-2.0
#include "pipelines/tiles/schedule.h"

#include <algorithm>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/linear/group_memory.h"
#include "pipelines/linear/padding.h"
#include "pipelines/linear/raster.h"
#include "pipelines/spelling.h"
#include "program/program.h"

namespace ladder {
namespace {

// As CUTLASS, DeepGEMM and others promote sums of e4m3.
constexpr std::int64_t kMostSummed = kRelativeColumns;
constexpr std::int64_t kByteColumns = 32;  // of a product of bytes

struct Spelling {
  template <class Schedule, class Text>
  static void spell(Schedule& s, Text& text) {
    text.number("tile ", s.rows);
    text.number("x", s.tokens);
    text.number("x", s.columns);
    text.number(", token tiles ", s.token_tiles, 1);
    text.number(", warps ", s.warps_n);
    text.number("x", s.warps_m);
    text.flag(", warpgroups", s.warpgroups);
    text.flag(", producers", s.producers);
    text.flag(", tensor memory", s.tensor_memory);
    text.number(", token parts ", s.token_parts, 1);
    text.number(", k-tiles ", s.k_tiles);
    text.number(", stages ", s.stages);
    text.name(", ", s.reduction, kReductions);
    text.number(", tail of ", s.tail_tiles, 0);
    text.number(" by ", s.tail_splits, 1);
    text.name(", ", s.route, kRoutes);
    text.name("", s.scale_place, kScalePlaces);
    text.flag(", dependent launch", s.dependent_launch);
    text.number(", ", s.ctas_per_sm);
    text.end(" per multiprocessor");
  }
};

}  // namespace

std::string to_string(const TileSchedule& schedule) { return spelled<Spelling>(schedule); }

std::optional<TileSchedule> tile_schedule_of(std::string_view text) {
  return read_schedule<Spelling, TileSchedule>(text);
}

CtaGrid grid_of(const TileSchedule& s, const Problem& problem) {
  const auto splits = ceil_div(round_up(problem.k, kBlock), std::int64_t{s.k_tiles} * s.columns);
  const bool may = problem.has_items() && s.token_tiles == 1 && splits == 1;
  return {.tiles = ceil_div(round_up(problem.n, kBlock), s.rows),
          .token_tiles = s.token_tiles,
          .splits = splits,
          .together = tiles_together(s.token_tiles, s.tokens),
          .items = may ? items_together(problem.m) : 1};
}

std::int64_t tail_k_tiles(const TileSchedule& s) {
  return ceil_div(std::int64_t{s.k_tiles}, std::int64_t{s.tail_splits});
}

std::int64_t groups_of_tile(const TileSchedule& s, const Problem& problem) {
  return problem.groups() == 1 ? 1 : std::max<std::int64_t>(s.columns / problem.group_size(), 1);
}

const MatrixInstruction* product_row(const TileSchedule& s, const Problem& problem,
                                     const Device& device) {
  if (!s.warpgroups) return nullptr;
  return s.tensor_memory ? tensor_memory_instruction(problem.formats.x, device)
                         : warpgroup_instruction(problem.formats.x, device);
}

std::int64_t tensor_columns(const TileSchedule& s) {
  constexpr std::int64_t kWarps = 4, kOperandsOfColumn = 2;
  return s.warps_n / kWarps * (s.tokens + kOperandPlaces * kBlock / kOperandsOfColumn);
}

std::int64_t tokens_of_load(const TileSchedule& s) {
  return s.tokens % 64 == 0 ? 64 : s.tokens % 32 == 0 ? 32 : 16;
}

Roles roles_of(const TileSchedule& s, const Device& device) {
  // Of a producer: what NVRTC 13.0 uses for 24 copies. Registers go by portions of 8, and a thread
  // has at most 255; consumers then ask for 240, as CUTLASS's do.
  constexpr std::int64_t kPortion = 8, kOfProducer = 56, kMost = 248, kMostOfConsumer = 240;
  const auto portions = [](std::int64_t registers) { return registers / kPortion * kPortion; };
  const auto each = std::min(portions(device.registers / (s.cta_threads() * s.ctas_per_sm)), kMost);
  const auto rest = each * s.cta_threads() - kOfProducer * kProducers;
  return {kProducers, static_cast<int>(kOfProducer),
          static_cast<int>(std::min(portions(rest / s.threads()), kMostOfConsumer))};
}

int operand_stages(const TileSchedule& s, const Problem& problem) {
  if (s.tensor_memory) return 1;
  if (s.token_parts > 1) return static_cast<int>(summed_columns(s, problem) / kByteColumns);
  return s.units() == 1 && s.route != Route::bytes ? 4 : 2;  // a block has two steps of bytes
}

std::int64_t summed_columns(const TileSchedule& s, const Problem& problem) {
  if (s.scale_place == ScalePlace::relative) return kRelativeColumns;
  const auto group = problem.groups() == 1 ? s.columns : s.columns / groups_of_tile(s, problem);
  if (!problem.promotes_sums() || group <= kMostSummed) return group;
  return group % kMostSummed == 0 ? kMostSummed : kBlock;
}

std::int64_t scaled_sums(const TileSchedule& s, const Problem& problem) {
  return s.scale_place == ScalePlace::relative ? s.columns / kRelativeColumns
                                               : groups_of_tile(s, problem);
}

bool keeps_totals(const TileSchedule& s, const Problem& problem) {
  if (problem.promotes_sums() || s.scale_place == ScalePlace::relative) return true;
  return problem.groups() > 1 && !scales_operands(problem, s.scale_place);
}

TileMemory tile_memory(const TileSchedule& s, const Problem& problem) {
  TileMemory out{};
  out.words =
      std::int64_t{s.stages} * (s.rows / kBlock) * (s.columns / kBlock) * problem.weight.bits * 128;
  // One group of all columns is loaded once, to registers.
  if (problem.groups() > 1) out.per_group = s.stages * groups_of_tile(s, problem) * s.rows;
  if (problem.weight.superblocks) {
    out.per_superblock = s.stages * superblocks_in(s.columns, problem.weight) * s.rows;
  }
  const auto pad = kActivationPadBytes / bytes_of(problem.formats.x);
  if (s.warpgroups) {
    out.x_pitch = kSwizzledBytes / bytes_of(problem.formats.x);
    out.activations = std::int64_t{s.stages} * s.tokens * s.columns;
  } else {
    out.x_pitch = s.columns + pad;
    out.activations = std::int64_t{s.stages} * s.tokens * out.x_pitch;
  }
  if (s.scale_place == ScalePlace::relative) {
    out.table = kRelativeEntries * 2;
  } else if (decoding_kind(problem) == Decoding::Kind::table) {
    out.table = table_entries(problem.weight.bits) * kLanes;
  }
  out.sum_pitch = s.rows + kSumPad;
  out.sums = s.tokens * out.sum_pitch;
  out.token_scales =
      problem.has<ScaleOfToken>() ? round_up(std::int64_t{s.tokens}, s.threads()) : 0;
  return out;
}

std::int64_t shared_bytes(const TileSchedule& s, const Problem& problem) {
  const TileMemory m = tile_memory(s, problem);
  const auto buffer = [](std::int64_t elements, std::int64_t bytes) {
    return round_up(elements * bytes, kSharedAlignment);
  };
  const auto ring =
      buffer(m.words, 4) + per_group_bytes(problem.weight, m.per_group, m.per_superblock);
  const auto all = (s.warpgroups ? round_up(ring, std::int64_t{kSwizzleAlignment}) : ring) +
                   buffer(m.activations, bytes_of(problem.formats.x)) + buffer(m.table, 4);
  const auto signals = (s.producers ? 2 * s.stages * kSignalBytes : 0) +
                       (s.tensor_memory ? kOperandPlaces * kSignalBytes + kTensorSlotBytes : 0);
  return std::max(all, buffer(m.sums + m.token_scales, 4)) + signals;
}

}  // namespace ladder
