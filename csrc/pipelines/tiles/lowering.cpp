// SPDX-License-Identifier: Apache-2.0
#include "pipelines/tiles/lowering.h"

#include <algorithm>

#include "pipelines/lower.h"

namespace ladder {
namespace {

// Columns of which sums of products of bytes, 128 * 255 at most, are less than 2^22.
constexpr std::int64_t kMostBiased = 128;

}  // namespace

Program TileLowering::run() {
  declare();
  Body& body = program_.body;
  declare_ring();
  if (s_.producers) {
    declare_stages(body);
  } else {
    first_copies(body);
  }
  load_whole_rows(body);
  if (has_table()) body.push_back(declare_table(memory_.table));
  if (has_table() && s_.producers) emit(body, Barrier{});  // no other comes before it is read
  declare_operands(body, tiling());
  if (warpgroup_ != nullptr) {
    stages_of_a_ = {operands_.a};
    for (int i = 1; i < operand_stages(s_, problem_); ++i) {
      stages_of_a_.push_back(another(operands_.a));
    }
  }
  if (has_parts()) declare_parts();
  if (s_.tensor_memory) declare_tensors();
  operands_.open = open();
  operands_.biased = instruction_.accumulator == Scalar::s32 && !one_sum() &&
                     summed_columns(s_, problem_) <= kMostBiased;
  operands_.begun = warpgroup_ != nullptr && !s_.tensor_memory && !one_sum() &&
                    instruction_.accumulator == Scalar::f32;
  if (s_.tensor_memory) {
    if (open()) prepare_group(body);  // sums begin at their first product
  } else {
    for (int part = 0; part < s_.token_parts; ++part) {
      if (has_parts()) use_part(part);
      begin_sums(body);
    }
    if (open()) begin_group(body);
  }
  Body each;
  k_tile(each);
  emit(body, For{k_tile_, s_.k_tiles, std::move(each), 1, program_.tail ? split_tiles() : 0});
  if (s_.tensor_memory) {
    await_tensors(body, s_.k_tiles);
  } else if (s_.producers && one_sum()) {
    await_products(body);
  }
  if (program_.tail) {
    add_tail(body);
  } else {
    reduce(body, s_.reduction);
  }
  return std::move(program_);
}

void TileLowering::declare() {
  program_.threads = instruction_.lanes() * s_.warps_n * s_.warps_m;
  program_.blocks_per_multiprocessor = s_.ctas_per_sm;
  const bool cluster = s_.reduction == Reduction::cluster;
  const bool tail = s_.tail_tiles > 0;
  const auto tiles = grid_.tiles * grid_.token_tiles;
  declare_kernel(tail ? s_.tail_splits : grid_.splits, tiles * grid_.items,
                 cluster ? static_cast<int>(grid_.splits) : 1, s_.dependent_launch,
                 tail ? Reduction::ordered : s_.reduction);
  if (tail) {
    program_.tail = {tiles - s_.tail_tiles, variable("is_tail", 2),
                     variable("tail_tile", s_.tail_tiles)};
  }
  sums_ = {.rows = s_.rows,
           .tokens = s_.tokens,
           .warps_k = 1,
           .pitch = memory_.sum_pitch,
           .elements = memory_.sums,
           .token_extent = s_.token_tiles == 1 ? kTokens : s_.tokens,
           .token_scales = memory_.token_scales,
           .splits = tail ? s_.tail_splits : grid_.splits,
           .tiles = tail ? s_.tail_tiles : tiles,
           .first_row = [this](const Affine&) { return first_row(s_.rows); },
           .first_token = first_token()};
  if (s_.token_tiles > 1) program_.first_token = first_token();
  if (program_.items) program_.items->together = grid_.items;
}

LinearLowering::Tiling TileLowering::tiling() const {
  return {.a_warps = spatial({1, s_.warps_n, 1}) * replicated(s_.warps_m, 3),
          .b_warps = replicated(s_.warps_n, 3) * spatial({1, s_.warps_m, 1}),
          .sum_warps = spatial({1, s_.warps_n, 1}) * spatial({1, 1, s_.warps_m}),
          .fit = fit_,
          .tokens = s_.tensor_memory ? tokens_of_load(s_) : s_.part_tokens(),
          .b_in_registers = warpgroup_ == nullptr,
          .running = keeps_totals(s_, problem_),
          .largest = spatial({1, s_.warps_n}) * replicated(s_.warps_m, 2) * fit_.rows(1, false)};
}

void TileLowering::k_tile(Body& body) {
  const auto k_tile = Affine::of(k_tile_);
  begin_k_tile(body, k_tile);
  if (!whole_row()) load_groups(body, k_tile);
  if (s_.tensor_memory) return tensor_tile(body, k_tile);
  const auto columns = summed_columns(s_, problem_);
  if (decoding_.scaled) {
    scaled_operands(body, k_tile);
  } else if (has_parts()) {
    return k_tile_in_parts(body, k_tile);
  } else if (columns >= kBlock) {
    wide_groups(body, k_tile, columns / kBlock);
  } else {
    narrow_groups(body, k_tile, columns);
  }
  if (s_.producers) {
    if (!one_sum()) release(body, k_tile);
  } else if (warpgroup_ != nullptr && one_sum()) {
    await_products(body);
  }
}

void TileLowering::begin_k_tile(Body& body, const Affine& k_tile) {
  if (s_.producers) {
    produce(body, k_tile);
    emit(body, Await{full_, stage_of(k_tile), remainder(divided(k_tile, s_.stages), 2)});
    // Of consumers: producers do not wait for their copies, and the fence is on the way from these
    // to products all the same.
    emit(body, MatrixFence{});
    return;
  }
  const auto following = k_tile + Affine(s_.stages - 1);
  emit(body, Wait{s_.stages - 2});
  if (warpgroup_ != nullptr) emit(body, MatrixFence{});
  // The copies of all threads are there, and nobody still reads the k-tile before, whose place is
  // copied to.
  emit(body, Barrier{});
  copy_weights(body, following, following, s_.k_tiles);
  copy_activations(body, following, following, s_.k_tiles);
  emit(body, Commit{});
}

// The products of a block leave no more on their way than its last steps.
void TileLowering::each_block(Body& body, const Affine& k_tile, std::int64_t count, bool releases,
                              const std::function<void(Body&, const Affine&, bool)>& per_block) {
  const bool release_first = s_.producers && releases;
  const std::int64_t first = release_first || operands_.begun ? 1 : 0;
  if (first > 0) per_block(body, 0, operands_.begun);
  if (release_first) release(body, k_tile);
  if (count == first) return;
  const auto block = variable("block", count - first);
  Body each;
  per_block(each, Affine::of(block) + Affine(first), false);
  emit(body, For{block, count - first, std::move(each)});
}

void TileLowering::scaled_operands(Body& body, const Affine& k_tile) {
  each_block(body, k_tile, blocks(), true, [&](Body& per_block, const Affine& block, bool begins) {
    load_words(per_block, k_tile, block);
    multiply_steps(per_block, k_tile, block, 0, kBlock / instruction_.k, begins);
  });
}

Affine TileLowering::group_of_step(const Affine& block, const Affine& step, std::int64_t turn,
                                   std::int64_t in_turn) const {
  if (groups_ == 1) return 0;
  const auto columns = problem_.group_size();
  if (columns >= kBlock) return divided(block, columns / kBlock);
  const auto steps = columns / instruction_.k;  // of a group
  const auto in_block = steps <= in_turn ? times(step, in_turn / steps) + Affine(turn / steps)
                                         : divided(step, steps / in_turn);
  return times(block, kBlock / columns) + in_block;
}

void TileLowering::wide_groups(Body& body, const Affine& k_tile, std::int64_t blocks) {
  const auto count = s_.columns / (blocks * kBlock);  // sums of a k-tile
  const auto group = variable("group", count);
  // Relative operands have several groups to a sum: the first of them.
  operands_.group = whole_row()  ? Affine(0)
                    : relative() ? Affine::of(group, groups_ / count)
                                 : divided(Affine::of(group), count / groups_);
  Body per_group;
  if (!open()) begin_group(per_group);
  const auto of_block = [&](Body& per_block, const Affine& block, bool begins) {
    // All of K is one group, whose blocks producers have written out in part.
    const auto before = s_.producers && open() ? Affine(0) : Affine::of(group, blocks);
    const auto of_tile = before + (blocks > 1 ? block : Affine(0));
    load_words(per_block, k_tile, of_tile);
    multiply_steps(per_block, k_tile, of_tile, 0, kBlock / instruction_.k, begins);
  };
  each_block(per_group, k_tile, blocks, open(), of_block);
  if (!open()) end_products(per_group);
  emit(body, For{group, count, std::move(per_group)});
}

void TileLowering::narrow_groups(Body& body, const Affine& k_tile, std::int64_t columns) {
  const auto steps = columns / instruction_.k, groups = kBlock / columns;
  const auto block = variable("block", blocks()), group = variable("group", groups);
  operands_.group = Affine::of(block, groups) + Affine::of(group);
  Body per_block, per_group;
  load_words(per_block, k_tile, Affine::of(block));
  begin_group(per_group);
  multiply_steps(per_group, k_tile, Affine::of(block), Affine::of(group, steps), steps,
                 operands_.begun);
  end_products(per_group);
  emit(per_block, For{group, groups, std::move(per_group)});
  emit(body, For{block, blocks(), std::move(per_block)});
}

void TileLowering::multiply_steps(Body& body, const Affine& k_tile, const Affine& block,
                                  const Affine& first, std::int64_t count, bool begins) {
  // A warpgroup decodes into tiles in turn, the next while the instruction still reads the last.
  const auto in_turn =
      warpgroup_ == nullptr ? 1 : std::min<std::int64_t>(count, operand_stages(s_, problem_));
  const auto turns = [&](Body& per_step, const Affine& step, bool begins_here) {
    for (std::int64_t turn = 0; turn < in_turn; ++turn) {
      operands_.in_block = first + times(step, in_turn) + Affine(turn);
      if (decoding_.scaled) {
        operands_.group = group_of_step(block, step, turn, in_turn);
        begin_group(per_step);
      } else if (relative()) {
        operands_.group_of_step = group_of_step(block, step, turn, in_turn);
      }
      multiply(per_step, k_tile, block, turn, in_turn, begins_here);
    }
  };
  const std::int64_t apart = begins ? 1 : 0, rest = count / in_turn - apart;
  if (begins) turns(body, 0, true);
  if (rest == 0) return;
  const auto step = variable("step", rest);
  Body per_step;
  turns(per_step, Affine::of(step) + Affine(apart), false);
  emit(body, For{step, rest, std::move(per_step)});
}

void TileLowering::multiply(Body& body, const Affine& k_tile, const Affine& block,
                            std::int64_t turn, std::int64_t in_turn, bool begins) {
  const auto column = times(operands_.in_block, instruction_.k);
  if (warpgroup_ == nullptr) {
    emit(body, LoadMatrix{&instruction_,
                          operands_.b,
                          x_ring_,
                          {0, times(stage_of(k_tile), s_.tokens), times(block, kBlock) + column}});
    return multiply_step(body);
  }
  operands_.a = stages_of_a_[turn];
  const int products = operands_.zero_in_steps() ? 2 : 1;  // of a k-step
  // Between two waits for all products; where they run on over k-tiles, without end. None is on its
  // way where sums begin.
  const auto steps = (one_sum() ? s_.columns : summed_columns(s_, problem_)) / instruction_.k;
  if (!begins && (steps > in_turn || (s_.producers && one_sum()))) {
    emit(body, MmaWait{products * static_cast<int>(in_turn - 1)});
  }
  multiply_step(body, [&](RegisterId acc, RegisterId a) {
    return Statement{
        shared_product(acc, a, k_tile, 0, block, column, begins && turn == 0 && acc == acc_)};
  });
}

MmaShared TileLowering::shared_product(RegisterId acc, RegisterId a, const Affine& k_tile,
                                       std::int64_t token, const Affine& block,
                                       const Affine& column, bool replaces) const {
  const auto of_panel = memory_.x_pitch / kBlock;  // blocks
  return {warpgroup_,
          acc,
          a,
          x_ring_,
          {stage_of(k_tile), token, divided(block, of_panel),
           times(remainder(block, of_panel), kBlock) + column},
          replaces};
}

// In the body of the loop that has the products: between trips the compiler may move sums to other
// registers.
void TileLowering::await_products(Body& body) {
  MmaWait wait{0, {acc_}};
  if (operands_.zero_in_steps()) wait.sums.push_back(operands_.zero_sum);
  emit(body, std::move(wait));
}

void TileLowering::end_products(Body& body) {
  if (warpgroup_ != nullptr) await_products(body);
  end_group(body);
}

Workspace workspace_of(const Problem& problem, const TileSchedule& s) {
  const std::int64_t sums = std::int64_t{s.tokens} * s.rows;
  if (s.tail_tiles > 0) return {s.tail_tiles * s.tail_splits * sums, s.tail_tiles};
  if (s.reduction != Reduction::ordered) return {};
  const CtaGrid grid = grid_of(s, problem);
  const auto tiles = grid.tiles * grid.token_tiles;
  return {tiles * grid.splits * sums, tiles};
}

Program lower(const Decisions& decisions, const TileSchedule& schedule) {
  return TileLowering(decisions, schedule).run();
}

}  // namespace ladder
