// SPDX-License-Identifier: Apache-2.0
// Why a schedule cannot serve an expression on a device.
#include "pipelines/linear/objection.h"

#include <algorithm>
#include <cmath>

#include "base/joined.h"
#include "layout/digits.h"
#include "layout/weight_image.h"
#include "pipelines/decode/rounds_cost.h"
#include "pipelines/decode/schedule.h"
#include "pipelines/decode/shared_memory.h"
#include "program/program.h"
#include "schedule/decisions.h"
#include "schedule/decoding_cost.h"

namespace ladder {
namespace {

// Parts and phases of signals, and addresses of copies; what NVRTC 13.0 uses.
constexpr int kSignalRegisters = 20;

std::string not_counts(const DecodeSchedule& s) {
  return count_objection({{"tokens", 1, s.tokens},
                          {"warps along N", 1, s.warps_n},
                          {"warps along K", 1, s.warps_k},
                          {"blocks", 1, s.blocks_per_warp},
                          {"rounds", 1, s.rounds},
                          {"stages", 1, s.stages},
                          {"row units", 1, s.units},
                          {"sweeps", 1, s.sweeps},
                          {"blocks of a multiprocessor", 1, s.blocks_per_multiprocessor},
                          {"depth", 0, s.depth},
                          {"rounds of activations", 0, s.x_rounds},
                          {"rounds apart", 0, s.x_slack},
                          {"sharers", 0, s.sharers}});
}

}  // namespace

std::string objection(const DecodeSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const Device& device = *decisions.device;
  const OperandDecisions& operands = decisions.of(s.route);
  if (auto why = not_counts(s); !why.empty()) return why;
  if (problem.m > kMostDecodeTokens) {
    return joined("decodes for ", kMostDecodeTokens, " tokens, not ", problem.m);
  }
  if (problem.windows() != nullptr) return "decoding has rows of x, not windows";
  if (auto why = not_while_multiplying(operands, problem.m); !why.empty()) return why;
  const auto splits = s.splits(problem.k), group = problem.group_size();
  const std::int64_t warp_columns = kBlock * s.blocks_per_warp;
  if (s.tokens < problem.m) return joined("serves ", s.tokens, " tokens of ", problem.m);
  if (s.tiles(problem.n) > kMostTilesOfRows) {
    return joined(s.tiles(problem.n), " tiles of rows, of at most ", kMostTilesOfRows);
  }
  if (auto why = reduction_objection(s.reduction, splits, s.block_rows(), device); !why.empty()) {
    return why;
  }
  if (s.dependent_launch && !device.dependent_launch()) return "no dependent launch";
  if (s.sharers > 0) {
    const auto rows = problem.k * bytes_of(problem.activation());
    if (!device.bulk_copy()) return "no copy engine";
    if (s.route == Route::digits) return "digits are made by threads";
    if (s.x_rounds > 0 &&
        (s.x_rounds != s.rounds || s.rounds == 1 || s.sweeps > 1 || s.x_slack > 0)) {
      return joined("the engine brings ", s.x_rounds, " of ", s.rounds, " rounds, sweeps ",
                    s.sweeps);
    }
    if (s.stages > 1) return "the engine brings activations before rounds in registers";
    if (problem.permuted_columns || rows % operands.hint.granularity_bytes != 0 ||
        problem.k % s.block_columns() != 0) {
      return joined(problem.k, " columns are not whole rows of ", s.block_columns());
    }
    if (s.sharers > 1 && (s.reduction == Reduction::cluster || s.sharers > device.max_cluster)) {
      return joined("a cluster of ", s.sharers, " tiles");
    }
  }
  if (s.units != kUnits) {
    if (kUnits % s.units != 0) return joined(s.units, " row units do not divide ", kUnits);
    if (s.warps_n != 1 || s.stages != 1) return "parts of blocks are for one warp along N";
    const auto whole_words = [&](Scalar scalar) { return bits_of(scalar) * 2 * s.units % 32 == 0; };
    if (problem.weight.scale && !whole_words(*problem.weight.scale)) {
      return joined("scales of ", 2 * s.units, " rows of ", name_of(*problem.weight.scale),
                    " are not whole words");
    }
    if (problem.weight.stored_zero != Zero::none && !whole_words(problem.weight.zero_scalar())) {
      return joined("zero points of ", 2 * s.units, " rows of ",
                    name_of(problem.weight.zero_scalar()), " are not whole words");
    }
  }
  if (auto why = misaligned(s, decisions); !why.empty()) return why;
  if (s.x_slack > 0 && s.x_rounds == 0) {
    return joined("warps apart by ", s.x_slack, " rounds of activations that come at once");
  }
  if (s.x_rounds > 0 && s.sharers == 0) {
    if (s.x_rounds < 2 || s.x_rounds > s.rounds) {
      return joined("activations of ", s.x_rounds, " of ", s.rounds, " rounds");
    }
    if (s.route == Route::digits) return "digits of activations are staged at once";
    if (s.depth > 0 && s.x_rounds % s.depth != 0) {
      return joined("activations of ", s.x_rounds, " rounds at depth ", s.depth);
    }
    if (s.stages > 1 && (s.x_rounds != s.stages || s.dependent_launch)) {
      return joined("activations of ", s.x_rounds, " rounds, weights of ", s.stages);
    }
    if (s.x_slack > 0) {
      if (!device.signals()) return "warps apart by rounds are for devices that wait for signals";
      if (s.x_slack > s.x_rounds - 2 || s.stages > 1 || s.sweeps > 1) {
        return joined("warps apart by ", s.x_slack, " of ", s.x_rounds, " rounds, ", s.stages,
                      " stages, ", s.sweeps, " sweeps");
      }
    }
    if (s.sweeps > 1 && s.rounds % s.x_rounds != 0) {
      return joined("sweeps of ", s.rounds, " rounds, activations of ", s.x_rounds);
    }
  }
  if (s.depth > 0 && (s.stages != 1 || s.rounds % s.depth != 0)) {
    return joined(s.rounds, " rounds, ", s.stages, " stages at depth ", s.depth);
  }
  if (s.by_blocks &&
      (s.depth == 0 || s.rounds <= s.depth || s.blocks_per_warp == 1 || group < warp_columns)) {
    return joined("blocks one by one: ", s.blocks_per_warp, " in a round, ", s.rounds,
                  " rounds at depth ", s.depth, ", groups of ", group);
  }
  if (s.sum_places != 1 && (s.sum_places != 2 || s.sweeps == 1)) {
    return joined(s.sum_places, " places for the sums of ", s.sweeps, " sweeps");
  }
  if (s.sweeps > 1 && (s.depth == 0 || s.reduction == Reduction::ordered)) {
    return "sweeps are for a depth, and for sums that wait in shared memory";
  }
  if (s.stages > 1 && (s.stages > s.rounds + 1 || !device.async_copy())) return "idle stages";
  if (problem.groups() > 1) {
    if (group >= warp_columns) {
      const auto sharing = group / warp_columns;
      const auto per_block = std::int64_t{s.rounds} * s.warps_k;
      if (group % warp_columns != 0 ||
          (sharing < s.warps_k ? s.warps_k % sharing : sharing % s.warps_k) != 0 ||
          (sharing < per_block ? per_block % sharing : sharing % per_block) != 0) {
        return joined("groups of ", group, " do not follow warps of ", warp_columns, " columns");
      }
    } else if (warp_columns % group != 0 || (group < 64 && 64 % group != 0) ||
               (group > 64 && group % 64 != 0)) {
      return joined("groups of ", group, " do not divide a warp's ", warp_columns, " columns");
    } else if (const int step = operands.core.instruction->k; group % step != 0) {
      return joined("groups of ", group, " are not steps of ", step);
    }
  }
  if (auto why = code_objection(s.route, s.scale_place, decisions); !why.empty()) return why;
  if (s.route == Route::digits) {
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
  }
  const int threads = kLanes * s.warps_n * s.warps_k;
  if (auto why = pairs_objection(problem, threads, s.block_rows()); !why.empty()) return why;
  if (s.reduction == Reduction::cluster) {
    if (auto why = gate_objection(problem, s.block_rows() / splits); !why.empty()) return why;
  }
  // Blocks have a place of their own for the largest exponent of bf16 digits.
  const bool largest = s.route == Route::digits && problem.activation() == Scalar::bf16;
  const auto bytes = shared_bytes(s, problem) + (largest ? kSharedAlignment : 0);
  if (auto why = residence_objection(threads, bytes, s.blocks_per_multiprocessor, device);
      !why.empty()) {
    return why;
  }
  const auto outputs = s.block_rows() * s.tokens / threads;
  if (s.reduction == Reduction::ordered && outputs > 16) return joined(outputs, " sums a thread");
  // Words in flight, sums, sixteen for operands and addresses, and what activations, decoding,
  // signals and rounds keep; the compiler has the last word.
  const auto sums = (s.rounds > 1 || group < warp_columns ? 2 : 1) * s.units * s.tokens / 2;
  const auto in_flight = s.depth > 0 ? s.depth : s.stages == 1 && s.rounds > 1 ? 2 : 1;
  const auto registers = in_flight * s.units * problem.weight.bits * s.blocks_per_warp + sums + 16 +
                         (s.rounds > 1 && s.route != Route::multiply_add
                              ? s.tokens / 2 * (s.sweeps > 1 && s.x_rounds == 0 ? s.rounds : 2)
                              : 0) +
                         decoding_registers(problem, s.scale_place) +
                         (s.x_slack > 0 ? kSignalRegisters : 0) + round_registers(s, problem);
  if (registers * threads * s.blocks_per_multiprocessor > device.registers) {
    return joined(registers, " registers a thread");
  }
  return {};
}

}  // namespace ladder
