// SPDX-License-Identifier: Apache-2.0
#include "pipelines/lower.h"

#include "pipelines/decode/lowering.h"
#include "pipelines/decode/register_stages.h"
#include "pipelines/decode/ring.h"
#include "pipelines/decode/through_registers.h"

namespace ladder {

Program DecodeLowering::run() {
  declare();
  auto& body = program_.body;
  load_first(body);
  // While the copies are on their way: the last statement waits for them.
  if (has_table()) body.insert(body.end() - 1, declare_table(shared_.table));
  if (needs_barrier_after_loads()) emit(body, Barrier{});
  multiply(body);
  return std::move(program_);
}

// The signal of a bulk copy orders what it brings, and splitting into digits ends with a barrier.
// Stages of activations begin with one, or await a signal of copies, which orders no table: threads
// fill it.
bool DecodeLowering::needs_barrier_after_loads() const {
  const bool table = has_table();
  return std::visit(Match{[&](const activations::AtOnce&) { return table || !digits(); },
                          [](const activations::Staged&) { return false; },
                          [&](const activations::Signalled&) { return table; },
                          [&](const activations::BulkCopy&) { return table; }},
                    schedule_.activations);
}

// Weights do not depend on the preceding kernel, so a dependent launch asks for them first.
// Otherwise the activations go first: they are few, and all threads wait for them; but not digits,
// which their threads make themselves.
void DecodeLowering::load_first(Body& body) {
  if (const auto* copy = schedule_.bulk_copy()) return load_by_bulk_copy(body, *copy);
  if (schedule_.dependent_launch) {
    load_weights(body);
    await_preceding(body);
    first_activations(body);
  } else {
    if (!digits()) first_activations(body);
    load_weights(body);
    if (digits()) first_activations(body);
  }
  if (!in_stages()) await_activations(body, 0);
}

void DecodeLowering::multiply(Body& body) {
  declare_products(body);
  begin_sums(body);
  main_loop(body);
  reduce(body, schedule_.reduction);
}

void DecodeLowering::declare() {
  const auto& s = schedule_;
  const int multicast = s.bulk_copy() != nullptr ? s.bulk_copy()->multicast : 1;
  program_.threads = kLanes * s.warps_n * s.warps_k;
  program_.blocks_per_multiprocessor = s.ctas_per_sm;
  program_.tiles_in_cluster = multicast > 1;
  const auto splits = s.splits(problem_.k), tiles = s.tiles(problem_.n);
  declare_kernel(splits, tiles,
                 s.reduction == Reduction::cluster ? static_cast<int>(splits) : multicast,
                 s.dependent_launch, s.reduction);
  sums_ = {.rows = rows(),
           .tokens = s.tokens,
           .warps_k = s.warps_k,
           .pitch = shared_.sum_pitch,
           .elements = shared_.sums,
           .places = s.reduction_buffers(),
           .sweeps = s.tiles_per_cta(),
           .kept = shared_.cta_sums,
           .splits = splits,
           .tiles = tiles,
           .first_row = [=, this](const Affine& tile) {
             return Affine::of(kTile, rows()) + times(tile, tiles * rows());
           }};
}

LinearLowering::Tiling DecodeLowering::tiling() const {
  const Layout warps = spatial({1, schedule_.warps_n, 1}) * spatial({schedule_.warps_k, 1, 1});
  return {.a_warps = warps,
          .b_warps = replicated(schedule_.warps_n, 3) * spatial({schedule_.warps_k, 1, 1}),
          .sum_warps = warps,
          .fit = ImageFit(instruction_, schedule_.m16_tiles),
          .tokens = schedule_.tokens,
          .running = groups_ > 1 || schedule_.k_tiles() > 1};
}

void DecodeLowering::declare_products(Body& body) {
  declare_operands(body, tiling());
  const auto [group, step, count] =
      declare_steps(groups_, kBlock / step_columns() * schedule_.blocks_per_warp / kept_.parts);
  group_ = group, step_ = step, steps_ = count;
}

Workspace workspace_of(const Problem& problem, const DecodeSchedule& schedule) {
  if (schedule.reduction != Reduction::ordered) return {};
  const auto tiles = schedule.tiles(problem.n);
  return {tiles * schedule.splits(problem.k) * schedule.tokens * schedule.tile_rows(), tiles};
}

Program lower(const Decisions& decisions, const DecodeSchedule& s) {
  return std::visit(
      Match{[&](const weights::AtOnce&) { return ThroughRegisters(decisions, s).run(); },
            [&](const weights::DoubleBuffered&) { return ThroughRegisters(decisions, s).run(); },
            [&](const weights::Ring& w) { return RingLowering(decisions, s, w).run(); },
            [&](const weights::RegisterStages& w) {
              return RegisterStagesLowering(decisions, s, w).run();
            }},
      s.weights);
}

}  // namespace ladder
