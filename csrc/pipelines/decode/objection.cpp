// SPDX-License-Identifier: Apache-2.0
// Why a schedule cannot serve an expression on a device.
#include "pipelines/decode/objection.h"

#include <algorithm>
#include <cmath>

#include "base/joined.h"
#include "layout/digits.h"
#include "layout/weight_image.h"
#include "pipelines/decode/registers.h"
#include "pipelines/decode/shared_memory.h"
#include "pipelines/linear/objection.h"
#include "program/program.h"

namespace ladder {
namespace {

std::int64_t warp_columns(const DecodeSchedule& s) { return kBlock * s.blocks_per_warp; }

std::string not_counts(const DecodeSchedule& s, const Decisions&) {
  const auto why = count_objection({{"tokens", 1, s.tokens},
                                    {"warps along N", 1, s.warps_n},
                                    {"warps along K", 1, s.warps_k},
                                    {"blocks", 1, s.blocks_per_warp},
                                    {"m16 tiles", 1, s.m16_tiles},
                                    {"CTAs per SM", 1, s.ctas_per_sm}});
  return why.empty() ? way_count_objection(s) : why;
}

std::string to_expression(const DecodeSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  if (problem.m > kMostDecodeTokens) {
    return joined("decodes for ", kMostDecodeTokens, " tokens, not ", problem.m);
  }
  if (problem.windows() != nullptr) return "decoding has rows of x, not windows";
  if (auto why = not_while_multiplying(decisions.of(s.route), problem.m); !why.empty()) return why;
  if (s.tokens < problem.m) return joined("serves ", s.tokens, " tokens of ", problem.m);
  return {};
}

std::string to_grid(const DecodeSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  if (s.tiles(problem.n) > kMostTilesOfRows) {
    return joined(s.tiles(problem.n), " tiles of rows, of at most ", kMostTilesOfRows);
  }
  auto why = reduction_objection(s.reduction, s.splits(problem.k), s.tile_rows(), device);
  if (!why.empty()) return why;
  return s.dependent_launch && !device.dependent_launch() ? "no dependent launch" : "";
}

/// Warps that have a part of the rows of a block of the image.
std::string to_parts_of_blocks(const DecodeSchedule& s, const Decisions& decisions) {
  const auto& weight = decisions.problem.weight;
  if (s.m16_tiles == kUnits) return {};
  if (kUnits % s.m16_tiles != 0) return joined(s.m16_tiles, " m16 tiles do not divide ", kUnits);
  if (s.warps_n != 1 || s.ring() != nullptr) return "parts of blocks are for one warp along N";
  const int rows = 2 * s.m16_tiles;  // of a lane
  const auto whole_words = [&](Scalar scalar) { return bits_of(scalar) * rows % 32 == 0; };
  if (weight.scale && !whole_words(weight.scale_in_memory())) {
    return joined("scales of ", rows, " rows of ", name_of(weight.scale_in_memory()),
                  " are not whole words");
  }
  if (weight.stored_zero != Zero::none && !whole_words(weight.zero_in_memory())) {
    return joined("zero points of ", rows, " rows of ", name_of(weight.zero_in_memory()),
                  " are not whole words");
  }
  return {};
}

std::string to_columns(const DecodeSchedule& s, const Decisions& decisions, std::int64_t group) {
  if (group >= decisions.problem.k) return {};
  const auto columns = warp_columns(s);
  if (group >= columns) {
    const auto sharing = group / columns;
    const auto per_cta = std::int64_t{s.k_tiles()} * s.warps_k;
    if (group % columns != 0 ||
        (sharing < s.warps_k ? s.warps_k % sharing : sharing % s.warps_k) != 0 ||
        (sharing < per_cta ? per_cta % sharing : sharing % per_cta) != 0) {
      return joined("groups of ", group, " do not follow warps of ", columns, " columns");
    }
  } else if (columns % group != 0 || (group < 64 && 64 % group != 0) ||
             (group > 64 && group % 64 != 0)) {
    return joined("groups of ", group, " do not divide a warp's ", columns, " columns");
  } else if (const int step = decisions.of(s.route).core.instruction->k; group % step != 0) {
    return joined("groups of ", group, " are not steps of ", step);
  }
  return {};
}

std::string to_groups(const DecodeSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  auto why = to_columns(s, decisions, problem.group_size());
  if (!why.empty() || !problem.weight.superblocks) return why;
  return to_columns(s, decisions, problem.weight.superblocks->columns);
}

std::string to_codes(const DecodeSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  if (auto why = code_objection(s.route, s.scale_place, decisions); !why.empty()) return why;
  if (s.route != Route::digits) return {};
  if (problem.weight.element != nullptr)
    return joined(problem.weight.element->name, " is no integer");
  if (problem.m != 1) return joined(problem.m, " tokens have more digits than rows");
  if (s.tokens != kMostDigits) return joined(s.tokens, " rows for ", kMostDigits, " digits");
  if (problem.weight.stored_zero != Zero::none) return "a stored zero point";
  for (int offset : byte_plan(problem.weight.bits).offset) {
    if (offset < problem.weight.shift && problem.weight.zero % 2 != 0)
      return "a zero point between two bytes";
    if (std::ldexp(problem.weight.zero, offset - problem.weight.shift) > 128) {
      return joined("a zero point of ", problem.weight.zero, " is no byte");
    }
  }
  return {};
}

/// Threads, shared memory and registers of a CTA.
std::string to_room(const DecodeSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const int threads = kLanes * s.warps_n * s.warps_k;
  if (auto why = pairs_objection(problem, threads, s.tile_rows()); !why.empty()) return why;
  if (s.reduction == Reduction::cluster) {
    const auto rows = s.tile_rows() / s.splits(problem.k);
    if (auto why = gate_objection(problem, rows); !why.empty()) return why;
  }
  // CTAs have a place of their own for the largest exponent of bf16 digits.
  const bool largest = s.route == Route::digits && problem.activation() == Scalar::bf16;
  const auto bytes = shared_bytes(s, problem) + (largest ? kSharedAlignment : 0);
  if (auto why = residence_objection(threads, bytes, s.ctas_per_sm, device); !why.empty()) {
    return why;
  }
  const auto outputs = s.tile_rows() * s.tokens / threads;
  if (s.reduction == Reduction::ordered && outputs > 16) return joined(outputs, " sums a thread");
  const auto registers = registers_of_thread(s, problem);
  return registers * threads * s.ctas_per_sm > device.registers
             ? joined(registers, " registers a thread")
             : "";
}

}  // namespace

std::string objection(const DecodeSchedule& s, const Decisions& decisions) {
  // Numbers that are no counts come first: the others divide by them.
  for (const auto check :
       {not_counts, to_expression, to_grid, activation_objection, to_parts_of_blocks,
        alignment_objection, weight_objection, to_groups, to_codes, to_room}) {
    if (auto why = check(s, decisions); !why.empty()) return why;
  }
  return {};
}

}  // namespace ladder
