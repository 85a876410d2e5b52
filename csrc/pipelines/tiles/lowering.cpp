// SPDX-License-Identifier: Apache-2.0
#include "pipelines/tiles/lowering.h"

#include "pipelines/lower.h"

namespace ladder {

Program TileLowering::run() {
  declare();
  Body& body = program_.body;
  declare_ring();
  first_copies(body);
  if (has_table()) body.push_back(declare_table(memory_.table));
  declare_operands(body, tiling());
  begin_sums(body);
  if (whole_row()) begin_group(body);
  operands_.open = whole_row();
  Body each;
  k_tile(each);
  emit(body, For{k_tile_, s_.k_tiles, std::move(each), 1});
  reduce(body, s_.reduction);
  return std::move(program_);
}

Affine TileLowering::first_row(std::int64_t factor) const {
  return Affine::of(kTile, factor, s_.token_tiles);
}

Affine TileLowering::first_token() const {
  if (s_.token_tiles == 1) return 0;
  return times(remainder(Affine::of(kTile), s_.token_tiles), s_.tokens);
}

void TileLowering::declare() {
  program_.threads = instruction_.lanes() * s_.warps_n * s_.warps_m;
  program_.blocks_per_multiprocessor = s_.ctas_per_sm;
  const bool cluster = s_.reduction == Reduction::cluster;
  declare_kernel(grid_.splits, grid_.tiles * grid_.token_tiles,
                 cluster ? static_cast<int>(grid_.splits) : 1, s_.dependent_launch, s_.reduction);
  sums_ = {.rows = s_.rows,
           .tokens = s_.tokens,
           .warps_k = 1,
           .pitch = memory_.sum_pitch,
           .elements = memory_.sums,
           .token_extent = s_.token_tiles == 1 ? kTokens : s_.tokens,
           .splits = grid_.splits,
           .tiles = grid_.tiles * grid_.token_tiles,
           .first_row = [this](const Affine&) { return first_row(s_.rows); },
           .first_token = first_token()};
}

LinearLowering::Tiling TileLowering::tiling() const {
  return {.a_warps = spatial({1, s_.warps_n, 1}) * replicated(s_.warps_m, 3),
          .b_warps = replicated(s_.warps_n, 3) * spatial({1, s_.warps_m, 1}),
          .sum_warps = spatial({1, s_.warps_n, 1}) * spatial({1, 1, s_.warps_m}),
          .fit = fit_,
          .tokens = s_.warp_tokens(),
          .running = keeps_totals(s_, expr_)};
}

void TileLowering::k_tile(Body& body) {
  const auto k_tile = Affine::of(k_tile_), following = k_tile + Affine(s_.stages - 1);
  emit(body, Wait{s_.stages - 2});
  // The copies of all threads are there, and nobody still reads the k-tile before, whose place is
  // copied to.
  emit(body, Barrier{});
  copy_weights(body, following, following, s_.k_tiles);
  copy_activations(body, following, following, s_.k_tiles);
  emit(body, Commit{});
  if (!whole_row()) load_groups(body, k_tile);
  const auto group_columns = whole_row() ? std::int64_t{s_.columns} : s_.columns / groups_;
  if (group_columns >= kBlock) {
    wide_groups(body, k_tile, group_columns / kBlock);
  } else {
    narrow_groups(body, k_tile, group_columns);
  }
}

void TileLowering::wide_groups(Body& body, const Affine& k_tile, std::int64_t blocks) {
  const auto group = variable("group", s_.columns / (blocks * kBlock));
  const auto block = variable("block", blocks), step = variable("step", kBlock / instruction_.k);
  operands_.group = whole_row() ? Affine(0) : Affine::of(group);
  operands_.in_block = Affine::of(step);
  const auto of_tile = Affine::of(group, blocks) + Affine::of(block);
  Body per_group, per_block, per_step;
  if (!whole_row()) begin_group(per_group);
  load_words(per_block, k_tile, of_tile);
  multiply(per_step, k_tile, times(of_tile, kBlock) + Affine::of(step, instruction_.k));
  emit(per_block, For{step, kBlock / instruction_.k, std::move(per_step)});
  emit(per_group, For{block, blocks, std::move(per_block)});
  if (!whole_row()) end_group(per_group);
  emit(body, For{group, s_.columns / (blocks * kBlock), std::move(per_group)});
}

void TileLowering::narrow_groups(Body& body, const Affine& k_tile, std::int64_t columns) {
  const auto steps = columns / instruction_.k, groups = kBlock / columns;
  const auto block = variable("block", blocks()), group = variable("group", groups),
             step = variable("step", steps);
  operands_.group = Affine::of(block, groups) + Affine::of(group);
  operands_.in_block = Affine::of(group, steps) + Affine::of(step);
  Body per_block, per_group, per_step;
  load_words(per_block, k_tile, Affine::of(block));
  begin_group(per_group);
  multiply(
      per_step, k_tile,
      Affine::of(block, kBlock) + Affine::of(group, columns) + Affine::of(step, instruction_.k));
  emit(per_group, For{step, steps, std::move(per_step)});
  end_group(per_group);
  emit(per_block, For{group, groups, std::move(per_group)});
  emit(body, For{block, blocks(), std::move(per_block)});
}

void TileLowering::multiply(Body& body, const Affine& k_tile, const Affine& column) {
  const std::vector<Affine> at = {0, times(stage_of(k_tile), s_.tokens), column};
  emit(body, LoadMatrix{&instruction_, operands_.b, x_ring_, at});
  multiply_step(body);
}

Workspace workspace_of(const Linear& expr, const TileSchedule& s) {
  if (s.reduction != Reduction::ordered) return {};
  const CtaGrid grid = grid_of(s, expr);
  const auto tiles = grid.tiles * grid.token_tiles;
  return {tiles * grid.splits * s.tokens * s.rows, tiles};
}

Program lower(const Decisions& decisions, const TileSchedule& schedule) {
  return TileLowering(decisions.expr, schedule, decisions.of(schedule.route)).run();
}

}  // namespace ladder
