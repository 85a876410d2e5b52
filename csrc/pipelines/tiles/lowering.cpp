// SPDX-License-Identifier: Apache-2.0
// The program of a tile kernel.
#include <algorithm>
#include <utility>

#include "base/integers.h"
#include "layout/weight_image.h"
#include "pipelines/linear/linear_lowering.h"
#include "pipelines/lower.h"
#include "pipelines/tiles/schedule.h"

namespace ladder {
namespace {

// Neighbouring CTAs have the same rows of the weight and other tokens: the second reads codes from
// L2 that the first asked for.
Affine row_tile(const TileSchedule& s, std::int64_t factor) {
  return Affine::of(kTile, factor, s.token_tiles);
}
Affine token_tile(const TileSchedule& s, std::int64_t factor) {
  return s.token_tiles == 1 ? Affine(0)
                            : times(remainder(Affine::of(kTile), s.token_tiles), factor);
}

class TileLowering : LinearLowering {
 public:
  TileLowering(const Linear& expr, const TileSchedule& schedule, const OperandDecisions& decisions)
      : LinearLowering(expr, decisions, schedule.route, schedule.scale_place),
        s_(schedule),
        grid_(grid_of(schedule, expr)),
        memory_(tile_memory(schedule, expr)),
        groups_(groups_of_tile(schedule, expr)) {}

  /// The whole program; once per object.
  Program run() {
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

 private:
  /// One group is all of K: its scale multiplies once, at the end.
  bool whole_row() const { return expr_.groups() == 1; }
  std::int64_t blocks() const { return s_.columns / kBlock; }
  std::int64_t row_blocks() const { return s_.rows / kBlock; }

  void declare() {
    program_.threads = static_cast<int>(s_.threads());
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
             .first_row = [this](const Affine&) { return row_tile(s_, s_.rows); },
             .first_token = token_tile(s_, s_.tokens)};
  }

  Tiling tiling() const {
    return {.a_warps = spatial({1, s_.warps_n, 1}) * replicated(s_.warps_m, 3),
            .b_warps = replicated(s_.warps_n, 3) * spatial({1, s_.warps_m, 1}),
            .sum_warps = spatial({1, s_.warps_n, 1}) * spatial({1, 1, s_.warps_m}),
            .units = s_.units(),
            .tokens = s_.warp_tokens(),
            .running = keeps_totals(s_, expr_)};
  }

  /// Warps along the rows, over [rows of blocks, parts of a block] with `before`, `between` and
  /// `after` dimensions around them.
  Layout warps_over(int rank, int block, int part) const {
    std::vector<std::int64_t> over_blocks(rank, 1), over_parts(rank, 1);
    const auto parts = kUnits / s_.units();
    over_blocks[block] = s_.warps_n / parts;
    over_parts[part] = parts;
    return spatial(over_blocks) * spatial(over_parts) * replicated(s_.warps_m, rank);
  }

  // --- the ring
  // -----------------------------------------------------------------------------------

  void declare_ring() {
    const std::int64_t b = expr_.bits, stages = s_.stages;
    const auto n_blocks = round_up(expr_.n, kBlock) / kBlock;
    const auto k_words = round_up(expr_.k, kBlock) / kBlock * b * 128;
    const auto tile_words = blocks() * b * 128;  // of one row of blocks
    const auto words = buffer("ring", Level::shared, Scalar::u32, memory_.words);
    sums_.over = words;
    // The barrier of the last k-tile freed the stages before the one it is in.
    const auto last_stage = (s_.k_tiles - 1) % stages * row_blocks() * tile_words;
    sums_.read_last = memory_.sums > last_stage;
    weight_rows_ = view(weight_, {n_blocks, k_words}, {k_words, 1});
    word_tile_ = view(words, {row_blocks(), tile_words}, {tile_words, 1});
    word_ring_ = view(words, {stages * row_blocks(), blocks(), b, kLanes, 4},
                      {tile_words, b * 128, 128, 4, 1});
    words_ = reg("words", Scalar::u32,
                 warps_over(5, 0, 2) * local({1, 1, b * s_.units() / kUnits, 1, 1}) *
                     spatial({1, 1, 1, kLanes, 1}) * local({1, 1, 1, 1, 4}));
    const auto loaded_layout = warps_over(5, 1, 4) * local({groups_, 1, 1, 1, 1}) *
                               spatial({1, 1, 8, 4, 1}) * local({1, 1, 1, 1, 2 * s_.units()});
    const auto rows_layout = spatial({1, s_.warps_n}) * replicated(s_.warps_m, 2) *
                             local({groups_, 1}) *
                             lifted(local({2 * s_.units()}) * spatial({8}) * replicated(4, 1));
    for (PerGroup& part : per_group_) {
      part.loaded = reg(part.name + "_table", part.scalar, loaded_layout);
      part.rows = reg(part.name, part.scalar, rows_layout);
      part.table = view(part.buffer, {expr_.groups(), n_blocks, 8, 4, 8},
                        {n_blocks * kBlock, kBlock, 8, 0, 1});
      if (whole_row()) continue;
      const auto ring = buffer(part.name + "_ring", Level::shared, part.scalar, memory_.per_group);
      part.ring = view(ring, {stages * groups_, row_blocks(), 8, 4, 8}, {s_.rows, kBlock, 8, 0, 1});
      group_copies_.push_back(
          {view(ring, {groups_, s_.rows}, {s_.rows, 1}),
           view(part.buffer, {expr_.groups(), n_blocks * kBlock}, {n_blocks * kBlock, 1})});
    }
    const auto x = buffer("x_ring", Level::shared, operand_, memory_.activations);
    x_rows_ = view(x_, {kTokens, expr_.k}, {expr_.k, 1});
    if (expr_.gather) x_order_ = view(gather_, {expr_.k}, {1});
    x_tile_ = view(x, {s_.tokens, s_.columns}, {memory_.x_pitch, 1});
    x_ring_ = view(x, {1, stages * s_.tokens, s_.columns}, {0, memory_.x_pitch, 1});
    k_tile_ = variable("k_tile", s_.k_tiles);
  }

  Affine stage_of(const Affine& k_tile) const { return remainder(k_tile, s_.stages); }
  /// The view with its offset at a stage; each is a view of its own.
  ViewId at_stage(ViewId of, const Affine& k_tile, std::int64_t elements) {
    View staged = program_.views[of];
    staged.offset = times(stage_of(k_tile), elements);
    program_.views.push_back(std::move(staged));
    return static_cast<ViewId>(program_.views.size() - 1);
  }

  void copy_weights(Body& body, const Affine& k_tile, const Affine& guard, std::int64_t below) {
    const auto tile_words = blocks() * expr_.bits * 128;
    emit(body, CopyAsync{at_stage(word_tile_, k_tile, row_blocks() * tile_words),
                         weight_rows_,
                         {row_tile(s_, row_blocks()),
                          Affine::of(kSplit, tile_words * s_.k_tiles) + times(k_tile, tile_words)},
                         guard,
                         below});
    for (const auto& [to, from] : group_copies_) {
      emit(body, CopyAsync{at_stage(to, k_tile, groups_ * s_.rows),
                           from,
                           {first_group(k_tile), row_tile(s_, s_.rows)},
                           guard,
                           below});
    }
  }

  /// The first group of a k-tile: k-tiles have whole groups, or groups whole k-tiles.
  Affine first_group(const Affine& k_tile) const {
    const auto group = expr_.group_size();
    if (group <= s_.columns) {
      return Affine::of(kSplit, groups_ * s_.k_tiles) + times(k_tile, groups_);
    }
    const auto sharing = group / s_.columns;
    const auto of_split = sharing <= s_.k_tiles ? Affine::of(kSplit, s_.k_tiles / sharing)
                                                : Affine::of(kSplit, 1, sharing / s_.k_tiles);
    return sharing <= s_.k_tiles ? of_split + divided(k_tile, sharing) : of_split;
  }

  void copy_activations(Body& body, const Affine& k_tile, const Affine& guard, std::int64_t below) {
    const auto to = at_stage(x_tile_, k_tile, s_.tokens * memory_.x_pitch);
    const std::vector<Affine> at = {
        token_tile(s_, s_.tokens),
        Affine::of(kSplit, std::int64_t{s_.columns} * s_.k_tiles) + times(k_tile, s_.columns)};
    if (whole_pieces()) {
      emit(body, CopyAsync{to, x_rows_, at, guard, below});
    } else {
      emit(body, CopyElements{to, x_rows_, at, x_order_, guard, below});
    }
  }

  // Weights do not depend on the preceding kernel: a dependent launch asks for them before its
  // wait, which puts those of all first k-tiles into the first group.
  void first_copies(Body& body) {
    const int ahead = std::min(s_.stages - 1, s_.k_tiles);
    if (s_.dependent_launch) {
      for (std::int64_t i = 0; i < ahead; ++i) copy_weights(body, i, 0, 1);
      await_preceding(body);
    }
    for (std::int64_t i = 0; i < s_.stages - 1; ++i) {
      if (i < ahead && !s_.dependent_launch) copy_weights(body, i, 0, 1);
      if (i < ahead) copy_activations(body, i, 0, 1);
      emit(body, Commit{});
    }
    if (!whole_row()) return;
    for (const PerGroup& part : per_group_) {
      emit(body,
           Load{part.loaded, part.table, {0, row_tile(s_, row_blocks()), 0, 0, 0}, Cache::many});
      emit(body, Reinterpret{part.rows, part.loaded});
    }
  }

  // --- one k-tile
  // ---------------------------------------------------------------------------------

  void k_tile(Body& body) {
    const auto k_tile = Affine::of(k_tile_), following = k_tile + Affine(s_.stages - 1);
    emit(body, Wait{s_.stages - 2});
    // The copies of all threads are there, and nobody still reads the k-tile before, whose place is
    // copied to.
    emit(body, Barrier{});
    copy_weights(body, following, following, s_.k_tiles);
    copy_activations(body, following, following, s_.k_tiles);
    emit(body, Commit{});
    if (!whole_row()) {
      for (const PerGroup& part : per_group_) {
        emit(body, Load{part.loaded, part.ring, {times(stage_of(k_tile), groups_), 0, 0, 0, 0}});
        emit(body, Reinterpret{part.rows, part.loaded});
      }
    }
    const auto group_columns = whole_row() ? std::int64_t{s_.columns} : s_.columns / groups_;
    if (group_columns >= kBlock) {
      wide_groups(body, k_tile, group_columns / kBlock);
    } else {
      narrow_groups(body, k_tile, group_columns);
    }
  }

  // Groups of several blocks of the image.
  void wide_groups(Body& body, const Affine& k_tile, std::int64_t blocks) {
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

  // Several groups in a block of the image.
  void narrow_groups(Body& body, const Affine& k_tile, std::int64_t columns) {
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

  void load_words(Body& body, const Affine& k_tile, const Affine& block) {
    emit(body, Load{words_, word_ring_, {times(stage_of(k_tile), row_blocks()), block, 0, 0, 0}});
  }

  void multiply(Body& body, const Affine& k_tile, const Affine& column) {
    emit(body,
         LoadMatrix{
             &instruction_, operands_.b, x_ring_, {0, times(stage_of(k_tile), s_.tokens), column}});
    multiply_step(body);
  }

  const TileSchedule& s_;
  const CtaGrid grid_;
  const TileMemory memory_;
  const std::int64_t groups_;  // of a k-tile
  ViewId weight_rows_ = -1, word_tile_ = -1, word_ring_ = -1;
  ViewId x_rows_ = -1, x_order_ = -1, x_tile_ = -1, x_ring_ = -1;
  std::vector<std::pair<ViewId, ViewId>> group_copies_;  // to, from
  VariableId k_tile_ = -1;
};

}  // namespace

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
