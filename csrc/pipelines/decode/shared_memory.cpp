// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/shared_memory.h"

#include <algorithm>

#include "base/integers.h"
#include "expr/decoding.h"
#include "layout/weight_image.h"
#include "pipelines/linear/group_memory.h"
#include "program/program.h"

namespace ladder {

std::int64_t staged_bytes(const DecodeSchedule& s, const Problem& problem) {
  return s.route == Route::digits ? 1 : bytes_of(problem.activation());
}

std::int64_t staged_parts(const DecodeSchedule& s) { return std::max(s.activation_stages(), 1); }

std::int64_t staged_columns(const DecodeSchedule& s) {
  return s.activation_stages() > 0 ? s.k_tile_columns() : s.cta_columns();
}

bool keeps_cta_sums(const DecodeSchedule& s) {
  return s.reduction == Reduction::cluster &&
         (s.tiles_per_cta() > 1 || s.warps_k > kWarpsReadByPeers);
}

std::int64_t groups_of_k_tile(const DecodeSchedule& s, const Problem& problem) {
  const std::int64_t columns = kBlock * s.blocks_per_warp;
  return problem.groups() == 1 ? 1 : std::max<std::int64_t>(columns / problem.group_size(), 1);
}

bool reuses_stages(const DecodeSchedule& s) { return s.k_tiles() > s.activation_stages(); }

namespace {

std::int64_t signals_of(const DecodeSchedule& s) {
  return std::visit(
      Match{[](const activations::AtOnce&) { return 0; },
            [](const activations::Staged&) { return 0; },
            [&](const activations::Signalled& x) {
              return (reuses_stages(s) ? 2 : 1) * x.stages;  // full, and empty
            },
            [&](const activations::BulkCopy& x) { return x.by_k_tiles ? s.k_tiles() : 1; }},
      s.activations);
}

}  // namespace

SharedMemory shared_memory(const DecodeSchedule& s, const Problem& problem) {
  SharedMemory out{};
  if (const auto* ring = s.ring()) {
    const std::int64_t warps = std::int64_t{ring->stages} * s.warps_n * s.warps_k;
    out.words = warps * s.blocks_per_warp * problem.weight.bits * 128;
    out.per_group = warps * groups_of_k_tile(s, problem) * kOfGroup;
    if (problem.weight.superblocks) {
      const auto of_warp = superblocks_in(kBlock * s.blocks_per_warp, problem.weight);
      out.per_superblock = warps * of_warp * kOfGroup;
    }
  }
  out.x_pitch = staged_columns(s) + kActivationPadBytes / staged_bytes(s, problem);
  out.activations = staged_parts(s) * s.tokens * out.x_pitch;
  if (decoding_kind(problem) == Decoding::Kind::table)
    out.table = table_entries(problem.weight.bits) * kLanes;
  out.sum_pitch = s.tile_rows() + kSumPad;
  const auto of_one = s.tokens * out.sum_pitch;
  out.sums = s.reduction_buffers() * s.warps_k * of_one;
  out.sums_over_words = out.sums <= out.words;
  if (keeps_cta_sums(s)) out.cta_sums = s.tiles_per_cta() * of_one;
  out.signals = signals_of(s);
  return out;
}

std::int64_t shared_bytes(const DecodeSchedule& s, const Problem& problem) {
  const SharedMemory m = shared_memory(s, problem);
  const auto buffer = [](std::int64_t elements, std::int64_t bytes) {
    return round_up(elements * bytes, kSharedAlignment);
  };
  return buffer(m.words, 4) + per_group_bytes(problem.weight, m.per_group, m.per_superblock) +
         buffer(m.activations, staged_bytes(s, problem)) + buffer(m.table, 4) +
         (m.sums_over_words ? 0 : buffer(m.sums, 4)) + buffer(m.cta_sums, 4) +
         m.signals * kSignalBytes;
}

}  // namespace ladder
