// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/shared_memory.h"

#include <algorithm>

#include "base/integers.h"
#include "expr/decoding.h"
#include "layout/weight_image.h"
#include "program/program.h"

namespace ladder {

std::int64_t staged_bytes(const DecodeSchedule& s, const Problem& problem) {
  return s.route == Route::digits ? 1 : bytes_of(problem.activation());
}

bool engine_by_rounds(const DecodeSchedule& s) { return s.sharers > 0 && s.x_rounds > 0; }

std::int64_t staged_parts(const DecodeSchedule& s) {
  return s.x_rounds > 0 && s.sharers == 0 ? s.x_rounds : 1;
}

std::int64_t staged_columns(const DecodeSchedule& s) {
  return s.x_rounds > 0 && s.sharers == 0 ? s.round_columns() : s.block_columns();
}

bool keeps_block_sums(const DecodeSchedule& s) {
  return s.reduction == Reduction::cluster && (s.sweeps > 1 || s.warps_k > kWarpsReadByPeers);
}

std::int64_t groups_of_round(const DecodeSchedule& s, const Problem& problem) {
  const std::int64_t columns = kBlock * s.blocks_per_warp;
  return problem.groups() == 1 ? 1 : std::max<std::int64_t>(columns / problem.group_size(), 1);
}

SharedMemory shared_memory(const DecodeSchedule& s, const Problem& problem) {
  SharedMemory out{};
  if (s.stages > 1) {
    const std::int64_t warps = std::int64_t{s.stages} * s.warps_n * s.warps_k;
    out.words = warps * s.blocks_per_warp * problem.weight.bits * 128;
    out.per_group = warps * groups_of_round(s, problem) * 256;  // each lane's own copy of its rows'
  }
  out.x_pitch = staged_columns(s) + kActivationPadBytes / staged_bytes(s, problem);
  out.activations = staged_parts(s) * s.tokens * out.x_pitch;
  if (decoding_kind(problem) == Decoding::Kind::table)
    out.table = table_entries(problem.weight.bits) * kLanes;
  out.sum_pitch = s.block_rows() + kSumPad;
  const auto of_one = s.tokens * out.sum_pitch;
  out.sums = s.sum_places * s.warps_k * of_one;
  out.sums_over_words = out.sums <= out.words;
  if (keeps_block_sums(s)) out.block_sums = s.sweeps * of_one;
  if (s.x_slack > 0) out.signals += (s.rounds > s.x_rounds ? 2 : 1) * s.x_rounds;
  if (s.sharers > 0) out.signals += engine_by_rounds(s) ? s.rounds : 1;
  return out;
}

std::int64_t shared_bytes(const DecodeSchedule& s, const Problem& problem) {
  const SharedMemory m = shared_memory(s, problem);
  const auto buffer = [](std::int64_t elements, std::int64_t bytes) {
    return round_up(elements * bytes, kSharedAlignment);
  };
  return buffer(m.words, 4) +
         (problem.weight.scale ? buffer(m.per_group, bytes_of(*problem.weight.scale)) : 0) +
         (problem.weight.stored_zero != Zero::none
              ? buffer(m.per_group, bytes_of(problem.weight.zero_scalar()))
              : 0) +
         buffer(m.activations, staged_bytes(s, problem)) + buffer(m.table, 4) +
         (m.sums_over_words ? 0 : buffer(m.sums, 4)) + buffer(m.block_sums, 4) +
         m.signals * kSignalBytes;
}

}  // namespace ladder
