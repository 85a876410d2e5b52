// SPDX-License-Identifier: Apache-2.0
// The ring of a tile kernel in shared memory: codes, scales and zero points, activations.
#include <algorithm>

#include "base/integers.h"
#include "pipelines/tiles/lowering.h"

namespace ladder {

void TileLowering::declare_ring() {
  declare_words();
  declare_groups();
  declare_activations();
  k_tile_ = variable("k_tile", s_.k_tiles);
}

void TileLowering::declare_words() {
  const std::int64_t b = problem_.weight.bits, stages = s_.stages;
  const auto n_blocks = round_up(problem_.n, kBlock) / kBlock;
  const auto k_words = round_up(problem_.k, kBlock) / kBlock * b * 128;
  const auto tile_words = blocks() * b * 128;  // of one row of blocks
  const auto words = buffer("ring", Level::shared, Scalar::u32, memory_.words);
  sums_.over = words;
  // The barrier of the last k-tile freed the stages before the one it is in.
  const auto last_stage = (s_.k_tiles - 1) % stages * row_blocks() * tile_words;
  // With tensor memory, that of the last block came behind what threads read, and products are
  // awaited.
  sums_.read_last =
      !s_.tensor_memory && (s_.producers || memory_.sums + memory_.token_scales > last_stage);
  weight_rows_ = view(weight_, {n_blocks, k_words}, {k_words, 1});
  word_tile_ = view(words, {row_blocks(), tile_words}, {tile_words, 1});
  word_ring_ = view(words, {stages * row_blocks(), blocks(), b, kLanes, 4},
                    {tile_words, b * 128, 128, 4, 1});
  words_ = reg(
      "words", Scalar::u32,
      warps_over(0, fit_.warps_of_words(problem_.weight.bits)) * fit_.words(problem_.weight.bits));
}

void TileLowering::declare_groups() {
  const auto n_blocks = round_up(problem_.n, kBlock) / kBlock;
  for (PerGroup& part : per_group_) {
    // Scales multiply operands or sums; zero points are part of operands, or offset sums.
    const bool of_a = part.zeros ? !zeros_by_product() : decoding_.scaled;
    part.groups = groups_in(s_.columns, part);
    part.loaded = reg(part.name + "_table", part.scalar,
                      warps_over(1, spatial({1, 1, 1, 1, fit_.warps_of_block()})) *
                          fit_.loaded(part.groups, of_a));
    part.rows =
        reg(part.name, part.scalar,
            spatial({1, s_.warps_n}) * replicated(s_.warps_m, 2) * fit_.rows(part.groups, of_a));
    part.table = table_of(part);
    if (whole_row()) continue;
    const auto ring =
        buffer(part.name + "_ring", Level::shared, part.scalar, s_.stages * part.groups * s_.rows);
    part.ring =
        view(ring, {s_.stages * part.groups, row_blocks(), 8, 4, 8}, {s_.rows, kBlock, 8, 0, 1});
    part.to = view(ring, {part.groups, s_.rows}, {s_.rows, 1});
    part.from = view(part.buffer, {ceil_div(problem_.k, part.columns), n_blocks * kBlock},
                     {n_blocks * kBlock, 1});
    program_.views[part.from].offset = part.offset;
  }
}

void TileLowering::declare_activations() {
  const auto x = buffer("x_ring", Level::shared, operand_, memory_.activations);
  const Windows* windows = problem_.windows();
  x_rows_ = windows == nullptr ? view(x_, {kTokens, problem_.k}, {problem_.k, 1})
                               : view(x_, {kTokens, problem_.k}, {0, 0});
  if (windows != nullptr) program_.views[x_rows_].windows = *windows;
  if (problem_.permuted_columns) x_order_ = view(gather_, {problem_.k}, {1});
  if (warpgroup_ == nullptr) {
    x_tile_ = view(x, {s_.tokens, s_.columns}, {memory_.x_pitch, 1});
    x_ring_ = view(x, {1, s_.stages * s_.tokens, s_.columns}, {0, memory_.x_pitch, 1});
    return;
  }
  program_.buffers[x].alignment = kSwizzleAlignment;
  const auto panel = memory_.x_pitch, panels = s_.columns / panel;
  x_tile_ = view(x, {s_.tokens, panels, panel}, {panel, s_.tokens * panel, 1});
  x_ring_ = view(x, {s_.stages, s_.tokens, panels, panel},
                 {s_.tokens * s_.columns, panel, s_.tokens * panel, 1});
  for (const ViewId id : {x_tile_, x_ring_}) program_.views[id].is_swizzled = true;
}

Layout TileLowering::warps_over(int dimension, const Layout& of_block) const {
  std::vector<std::int64_t> blocks(of_block.shape.size(), 1);
  blocks[dimension] = s_.warps_n / fit_.warps_of_block();
  return spatial(blocks) * of_block * replicated(s_.warps_m, static_cast<int>(blocks.size()));
}

ViewId TileLowering::at_stage(ViewId of, const Affine& k_tile, std::int64_t elements) {
  View staged = program_.views[of];
  staged.offset = times(stage_of(k_tile), elements);
  program_.views.push_back(std::move(staged));
  return static_cast<ViewId>(program_.views.size() - 1);
}

void TileLowering::copy_weights(Body& body, const Affine& k_tile, const Affine& guard,
                                std::int64_t below) {
  const auto tile_words = blocks() * problem_.weight.bits * 128;
  emit(body, CopyAsync{at_stage(word_tile_, k_tile, row_blocks() * tile_words),
                       weight_rows_,
                       {first_row(row_blocks()),
                        Affine::of(kSplit, tile_words * split_tiles()) + times(k_tile, tile_words)},
                       guard,
                       below});
  for (const PerGroup& part : per_group_) {
    if (whole_row()) break;
    emit(body, CopyAsync{at_stage(part.to, k_tile, part.groups * s_.rows),
                         part.from,
                         {first_group(part, k_tile), first_row(s_.rows)},
                         guard,
                         below});
  }
}

Affine TileLowering::first_group(const PerGroup& part, const Affine& k_tile) const {
  const auto group = part.columns;
  if (group <= s_.columns) {
    return Affine::of(kSplit, part.groups * split_tiles()) + times(k_tile, part.groups);
  }
  const auto sharing = group / s_.columns;
  const auto tiles = split_tiles();
  const auto of_split = sharing <= tiles ? Affine::of(kSplit, tiles / sharing)
                                         : Affine::of(kSplit, 1, sharing / tiles);
  return sharing <= s_.k_tiles ? of_split + divided(k_tile, sharing) : of_split;
}

void TileLowering::copy_activations(Body& body, const Affine& k_tile, const Affine& guard,
                                    std::int64_t below) {
  const auto to = at_stage(x_tile_, k_tile, memory_.activations / s_.stages);
  const std::vector<Affine> at = {
      first_token(), Affine::of(kSplit, s_.columns * split_tiles()) + times(k_tile, s_.columns)};
  if (whole_pieces()) {
    emit(body, CopyAsync{to, x_rows_, at, guard, below});
  } else {
    emit(body, CopyElements{to, x_rows_, at, x_order_, guard, below});
  }
}

// Weights do not depend on the preceding kernel: a dependent launch asks for them before its
// wait, which puts those of all first k-tiles into the first group.
void TileLowering::first_copies(Body& body) {
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
}

void TileLowering::load_whole_rows(Body& body) {
  if (!whole_row()) return;
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.loaded, part.table, {0, first_row(row_blocks()), 0, 0, 0}, Cache::many});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

// Where products run on over the border of k-tiles, a stage is known to be read when products of
// the next k-tile have been waited for: a k-tile releases the stage of the one before it, and the
// first the last stage. The others are empty at first.
void TileLowering::declare_stages(Body& body) {
  full_ = signal(body, {"stage_full", s_.stages, kProducers});
  empty_ = signal(body, {"stage_empty", s_.stages, program_.threads});
  if (s_.tensor_memory) freed_ = signal(body, {"operands_free", kOperandPlaces, 1});
  emit(body, Barrier{});
  if (s_.dependent_launch) await_preceding(body);
  if (!one_sum()) return;
  for (std::int64_t stage = 0; stage < s_.stages - 1; ++stage) emit(body, Arrive{empty_, stage});
}

void TileLowering::produce(Body& body, const Affine& k_tile) {
  // Before a stage was ever used, the phase before its first has ended, as its parity says.
  const auto turn = divided(one_sum() ? k_tile : k_tile + Affine(s_.stages), s_.stages);
  Produce part;
  emit(part.body, Await{empty_, stage_of(k_tile), remainder(turn, 2)});
  copy_weights(part.body, k_tile, 0, 1);
  copy_activations(part.body, k_tile, 0, 1);
  emit(part.body, Arrive{full_, stage_of(k_tile), Arrival::copies});
  emit(body, std::move(part));
}

void TileLowering::release(Body& body, const Affine& k_tile) {
  emit(body, Arrive{empty_, stage_of(one_sum() ? k_tile + Affine(s_.stages - 1) : k_tile)});
}

void TileLowering::load_groups(Body& body, const Affine& k_tile) {
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.loaded, part.ring, {times(stage_of(k_tile), part.groups), 0, 0, 0, 0}});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
  multiply_seconds(body);
}

void TileLowering::load_words(Body& body, const Affine& k_tile, const Affine& block) {
  const std::vector<Affine> at{times(stage_of(k_tile), row_blocks()), block, 0, 0, 0};
  if (has_chunks(s_.units(), problem_.weight.bits)) {
    emit(body, Load{words_, word_ring_, at});
  } else {
    emit(body, LoadUnits{words_, word_ring_, at});
  }
}

}  // namespace ladder
