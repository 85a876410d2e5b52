// SPDX-License-Identifier: Apache-2.0
#include "pipelines/waves/lowering.h"

#include <algorithm>

#include "pipelines/lower.h"

namespace ladder {

Program WaveLowering::run() {
  declare();
  Body& body = program_.body;
  declare_weights();
  declare_activations();
  if (!s_.behind || whole_row()) load_scales(body, 0, false);
  if (!s_.behind) load_words(body, 0, words_);
  load_activations(body, 0);
  if (has_table()) body.push_back(declare_table(memory_.table));
  store_activations(body, 0);
  declare_operands(body, tiling());
  steps_ = declare_steps(groups_, kBlock / instruction_.step_columns() * blocks_);
  if (whole_row()) operands_.group = 0;
  operands_.open = whole_row();
  begin_sums(body);
  if (whole_row()) begin_group(body);
  if (s_.alternate) {
    alternate(body);
    reduce(body, s_.reduction);
    return std::move(program_);
  }
  const Affine last = s_.k_tiles - 1;
  if (s_.k_tiles > 1) {
    const auto k_tile = Affine::of(k_tile_), following = k_tile + Affine(1);
    Body each;
    emit(each, Barrier{});
    if (!s_.behind) {
      load_words(each, following, next_words_);
      if (!whole_row()) load_scales(each, following, true);
    }
    load_activations(each, following);
    multiply(each, k_tile);
    if (s_.stages == 1) emit(each, Barrier{});
    store_activations(each, following);
    if (!s_.behind) take_next(each);
    emit(body, For{k_tile_, s_.k_tiles - 1, std::move(each), 1});
  }
  emit(body, Barrier{});
  multiply(body, last);
  reduce(body, s_.reduction);
  return std::move(program_);
}

void WaveLowering::declare() {
  program_.threads = static_cast<int>(s_.threads());
  program_.blocks_per_multiprocessor = s_.groups_per_cu;
  declare_kernel(grid_.splits, grid_.tiles * grid_.token_tiles, 1, false, s_.reduction);
  k_tile_ = variable("k_tile", std::max(s_.k_tiles - 1, 1));
  sums_ = {.rows = s_.rows(),
           .tokens = s_.tokens,
           .warps_k = sum_parts(s_),
           .pitch = memory_.sum_pitch,
           .elements = memory_.sums,
           .direct = sum_parts(s_) == 1,
           .token_extent = s_.token_tiles == 1 ? kTokens : s_.tokens,
           .splits = grid_.splits,
           .tiles = grid_.tiles * grid_.token_tiles,
           .first_row = [this](const Affine&) { return first_row(s_.rows()); },
           .first_token = first_token()};
  if (s_.token_tiles > 1) program_.first_token = first_token();
}

LinearLowering::Tiling WaveLowering::tiling() const {
  const Layout along_k = spatial({s_.waves_k, 1, 1});
  return {.a_warps = spatial({1, s_.waves_n, 1}) * replicated(s_.waves_m, 3) * along_k,
          .b_warps = replicated(s_.waves_n, 3) * spatial({1, s_.waves_m, 1}) * along_k,
          .sum_warps = spatial({1, s_.waves_n, 1}) * spatial({1, 1, s_.waves_m}) * along_k,
          .fit = fit_,
          .tokens = s_.wave_tokens(),
          .running = keeps_totals(s_, problem_)};
}

void WaveLowering::multiply(Body& body, const Affine& k_tile) {
  Body per_group, per_step;
  if (s_.behind) load_words(body, k_tile, words_);
  if (s_.behind && !whole_row()) {
    load_scales(per_group, k_tile, false, Affine::of(steps_.group));
    multiply_seconds(per_group);
    operands_.group = 0;
  } else {
    multiply_seconds(body);
  }
  if (!whole_row()) begin_group(per_group);
  load_step(per_step, k_tile, Affine::of(steps_.group), Affine::of(steps_.step));
  multiply_step(per_step);
  emit(per_group, For{steps_.step, steps_.count, std::move(per_step)});
  if (!whole_row()) end_group(per_group);
  emit(body, For{steps_.group, groups_, std::move(per_group)});
}

void WaveLowering::load_step(Body& body, const Affine& k_tile, const Affine& group,
                             const Affine& step) {
  const auto columns = instruction_.step_columns();
  emit(body, Load{operands_.b,
                  x_wave_,
                  {0, times(remainder(k_tile, s_.stages), s_.tokens),
                   times(group, steps_.count * columns) + times(step, columns)}});
}

Workspace workspace_of(const Problem& problem, const WaveSchedule& s) {
  if (s.reduction != Reduction::ordered) return {};
  const CtaGrid grid = grid_of(s, problem);
  const auto tiles = grid.tiles * grid.token_tiles;
  return {tiles * grid.splits * s.tokens * s.rows(), tiles};
}

Program lower(const Decisions& decisions, const WaveSchedule& schedule) {
  OperandDecisions operands = decisions.of(schedule.route);
  operands.core.instruction = instruction_of(schedule, decisions);
  return WaveLowering(decisions, schedule, operands).run();
}

}  // namespace ladder
