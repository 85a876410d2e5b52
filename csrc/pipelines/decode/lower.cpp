// SPDX-License-Identifier: Apache-2.0
#include "pipelines/lower.h"

#include <algorithm>

#include "pipelines/decode/lowering.h"

namespace ladder {

Program DecodeLowering::run() {
  declare();
  auto& body = program_.body;
  load_first(body);
  // While the copies are on their way: the last statement waits for them.
  if (has_table()) body.insert(body.end() - 1, declare_table(shared_.table));
  if (needs_barrier_after_loads()) emit(body, Barrier{});
  if (schedule_.sweeps > 1) {
    sweeps(body);
  } else {
    multiply(body);
    reduce(body, schedule_.reduction);
  }
  return std::move(program_);
}

// The engine's signal orders what it brings, and splitting into digits ends with a barrier. Rounds
// of activations begin with one, or await a signal of copies, which orders no table: threads fill
// it.
bool DecodeLowering::needs_barrier_after_loads() const {
  const bool table = has_table();
  if (x_in_rounds()) return table && schedule_.x_slack > 0;
  return table || (schedule_.sharers == 0 && !digits());
}

// Weights do not depend on the preceding kernel, so a dependent launch asks for them first.
// Otherwise the activations go first: they are few, and all threads wait for them; but not digits,
// which their threads make themselves.
void DecodeLowering::load_first(Body& body) {
  if (schedule_.sharers > 0) {
    load_by_engine(body);
  } else if (staged()) {
    declare_ring();
    const std::int64_t ahead = schedule_.stages - 1;
    if (schedule_.dependent_launch) {
      for (std::int64_t i = 0; i + 1 < ahead; ++i) fetch(body, i);
      await_preceding(body);
      first_activations(body);
      fetch(body, ahead - 1);
      await_activations(body, 1);
    } else if (x_in_rounds()) {
      declare_activations();
      for (std::int64_t i = 0; i < ahead; ++i) copy_activations(body, i), fetch(body, i);
    } else {
      if (!digits()) first_activations(body);
      for (std::int64_t i = 0; i < ahead; ++i) fetch(body, i);
      if (digits()) first_activations(body);
      await_activations(body, static_cast<int>(ahead));
    }
  } else if (schedule_.dependent_launch) {
    load_weights(body);
    await_preceding(body);
    first_activations(body);
    if (!x_in_rounds()) await_activations(body, 0);
  } else {
    if (!digits()) first_activations(body);
    load_weights(body);
    if (digits()) first_activations(body);
    if (!x_in_rounds()) await_activations(body, 0);
  }
}

void DecodeLowering::declare() {
  const auto& s = schedule_;
  program_.threads = kLanes * s.warps_n * s.warps_k;
  program_.blocks_per_multiprocessor = s.blocks_per_multiprocessor;
  program_.tiles_in_cluster = s.sharers > 1;
  const auto splits = s.splits(problem_.k), tiles = s.tiles(problem_.n);
  declare_kernel(
      splits, tiles,
      s.reduction == Reduction::cluster ? static_cast<int>(splits) : std::max(s.sharers, 1),
      s.dependent_launch, s.reduction);
  sums_ = {.rows = rows(),
           .tokens = s.tokens,
           .warps_k = s.warps_k,
           .pitch = shared_.sum_pitch,
           .elements = shared_.sums,
           .places = s.sum_places,
           .sweeps = s.sweeps,
           .kept = shared_.block_sums,
           .splits = splits,
           .tiles = tiles,
           .first_row = [=, this](const Affine& sweep) {
             return Affine::of(kTile, rows()) + times(sweep, tiles * rows());
           }};
}

LinearLowering::Tiling DecodeLowering::tiling() const {
  const Layout warps = spatial({1, schedule_.warps_n, 1}) * spatial({schedule_.warps_k, 1, 1});
  return {.a_warps = warps,
          .b_warps = replicated(schedule_.warps_n, 3) * spatial({schedule_.warps_k, 1, 1}),
          .sum_warps = warps,
          .fit = ImageFit(instruction_, schedule_.units),
          .tokens = schedule_.tokens,
          .running = groups_ > 1 || schedule_.rounds > 1};
}

Workspace workspace_of(const Problem& problem, const DecodeSchedule& schedule) {
  if (schedule.reduction != Reduction::ordered) return {};
  const auto tiles = schedule.tiles(problem.n);
  return {tiles * schedule.splits(problem.k) * schedule.tokens * schedule.block_rows(), tiles};
}

Program lower(const Decisions& decisions, const DecodeSchedule& schedule) {
  return DecodeLowering(decisions.problem, schedule, decisions.of(schedule.route)).run();
}

}  // namespace ladder
