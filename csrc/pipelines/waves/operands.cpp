// SPDX-License-Identifier: Apache-2.0
// What waves multiply: codes, scales and zero points in registers, activations in shared memory.
#include <numeric>

#include "base/integers.h"
#include "pipelines/waves/lowering.h"

namespace ladder {

void WaveLowering::declare_weights() {
  const std::int64_t b = problem_.weight.bits;
  const auto n_blocks = round_up(problem_.n, kBlock) / kBlock;
  const auto k_blocks = round_up(problem_.k, kBlock) / kBlock;
  image_ =
      view(weight_, {n_blocks, k_blocks, b, kLanes, 4}, {k_blocks * b * 128, b * 128, 128, 4, 1});
  const Layout waves = spatial({s_.waves_n, 1, 1, 1, 1}) * replicated(s_.waves_m, 5) *
                       spatial({1, s_.waves_k, 1, 1, 1});
  const Layout words = waves * local({1, blocks_, 1, 1, 1}) * fit_.words(problem_.weight.bits);
  words_ = reg("words", Scalar::u32, words);
  if (!s_.behind && s_.k_tiles > 1) next_words_ = reg("next_words", Scalar::u32, words);
  for (PerGroup& part : per_group_) {
    // Scales multiply operands or sums; zero points are part of operands, or offset sums.
    const bool of_a = part.zeros ? !zeros_by_product() : decoding_.scaled;
    const GroupOrder order = group_order(s_.columns, s_.waves_k, s_.k_tiles, part.columns);
    part.first = order.first;
    part.groups = groups_in(s_.columns, part);
    const auto groups = !s_.behind ? part.groups : 1;  // at a time
    Layout each = fit_.loaded(groups, of_a);
    each.shape[0] = part.groups;
    const Layout loaded =
        spatial({1, s_.waves_n, 1, 1, 1}) * replicated(s_.waves_m, 5) * order.over_k * each;
    part.loaded = reg(part.name + "_table", part.scalar, loaded);
    part.rows = reg(part.name, part.scalar,
                    spatial({1, s_.waves_n}) * replicated(s_.waves_m * s_.waves_k, 2) *
                        fit_.rows(groups, of_a));
    part.table = table_of(part);
    if (!whole_row() && !s_.behind && s_.k_tiles > 1)
      part.next = reg("next_" + part.name, part.scalar, loaded);
  }
}

void WaveLowering::load_words(Body& body, const Affine& k_tile, RegisterId words) {
  const auto blocks = blocks_ * s_.waves_k;
  std::vector<Affine> at = {first_row(2 * s_.waves_n),
                            Affine::of(kSplit, blocks * s_.k_tiles) + times(k_tile, blocks), 0, 0,
                            0};
  if (fit_.reads_chunks(problem_.weight.bits)) {
    emit(body, Load{words, image_, std::move(at), Cache::once});
  } else {
    emit(body, LoadUnits{words, image_, std::move(at)});
  }
}

void WaveLowering::load_scales(Body& body, const Affine& k_tile, bool next, const Affine& group) {
  for (const PerGroup& part : per_group_) {
    emit(body, Load{next ? part.next : part.loaded,
                    part.table,
                    {part.first(k_tile) + divided(group, groups_ / part.groups),
                     first_row(2 * s_.waves_n), 0, 0, 0}});
    if (!next) emit(body, Reinterpret{part.rows, part.loaded});
  }
}

void WaveLowering::take_next(Body& body) {
  emit(body, Reinterpret{words_, next_words_});
  if (whole_row()) return;
  for (const PerGroup& part : per_group_) {
    emit(body, Reinterpret{part.loaded, part.next});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

// Pieces of 16 bytes, those of a row side by side. Where there are more threads than pieces, some
// have the same.
void WaveLowering::declare_activations() {
  const auto x = buffer("x_tile", Level::shared, operand_, memory_.activations);
  sums_.over = x;
  // The barrier of the last k-tile freed the stage before the one it is in.
  const auto last_stage = (s_.k_tiles - 1) % s_.stages * s_.tokens * memory_.x_pitch;
  sums_.read_last = memory_.sums * 4 > last_stage * bytes_of(operand_);
  x_rows_ = view(x_, {kTokens, problem_.k}, {problem_.k, 1});
  if (problem_.permuted_columns) x_order_ = view(gather_, {problem_.k}, {1});
  const auto columns = s_.tile_columns() / x_parts();
  x_stage_ = view(x, {s_.tokens, columns}, {memory_.x_pitch, 1});
  x_wave_ =
      view(x, {s_.waves_k, s_.stages * s_.tokens, s_.columns}, {s_.columns, memory_.x_pitch, 1});
  if (!whole_pieces()) return;
  const std::int64_t piece = 16 / bytes_of(operand_);
  const auto pieces = columns / piece, threads = s_.threads();
  const auto across = std::gcd(pieces, threads);
  const auto down = std::gcd(std::int64_t{s_.tokens}, threads / across);
  x_next_ =
      reg("x_next", operand_,
          local({s_.tokens / down, pieces / across}) * replicated(threads / (across * down), 2) *
              spatial({down, across}) * local({1, piece}));
}

ViewId WaveLowering::stage(const Affine& k_tile, std::int64_t part) {
  View staged = program_.views[x_stage_];
  staged.offset = times(remainder(k_tile, s_.stages), s_.tokens * memory_.x_pitch) +
                  Affine(part * staged.extents[1]);
  program_.views.push_back(std::move(staged));
  return static_cast<ViewId>(program_.views.size() - 1);
}

std::vector<Affine> WaveLowering::activations_at(const Affine& k_tile, std::int64_t part) const {
  const auto columns = s_.tile_columns();
  return {first_token(), Affine::of(kSplit, columns * s_.k_tiles) + times(k_tile, columns) +
                             Affine(part * columns / x_parts())};
}

void WaveLowering::copy_elements(Body& body, const Affine& k_tile) {
  emit(body, CopyElements{stage(k_tile, 0), x_rows_, activations_at(k_tile, 0), x_order_});
}

// Single elements go to a stage that nobody reads at once.
void WaveLowering::load_activations(Body& body, const Affine& k_tile, std::int64_t part) {
  if (whole_pieces()) {
    // The compiler counts what is on its way, in one block of a loop alone: no branches in phases.
    emit(body, Load{.to = x_next_,
                    .from = x_rows_,
                    .at = activations_at(k_tile, part),
                    .any_token = s_.alternate});
  } else if (s_.stages > 1) {
    copy_elements(body, k_tile);
  }
}

void WaveLowering::store_activations(Body& body, const Affine& k_tile, std::int64_t part) {
  if (whole_pieces()) {
    emit(body, Store{x_next_, stage(k_tile, part), {0, 0}});
  } else if (s_.stages == 1) {
    copy_elements(body, k_tile);
  }
}

}  // namespace ladder
