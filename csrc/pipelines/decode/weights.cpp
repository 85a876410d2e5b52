// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/integers.h"
#include "pipelines/decode/lowering.h"

namespace ladder {

Layout DecodeLowering::word_layout() const {
  return spatial({schedule_.warps_n, 1, 1, 1, 1}) * spatial({1, schedule_.warps_k, 1, 1, 1}) *
         local({1, schedule_.blocks_per_warp / kept_.parts,
                problem_.weight.bits * schedule_.m16_tiles / kUnits, 1, 1}) *
         spatial({1, 1, 1, kLanes, 1}) * local({1, 1, 1, 1, 4});
}

Affine DecodeLowering::row_block(const Affine& tile) const {
  const auto parts = kUnits / schedule_.m16_tiles;
  return Affine::of(kTile, schedule_.warps_n, parts) +
         times(tile, schedule_.tiles(problem_.n) * schedule_.warps_n / parts);
}

Affine DecodeLowering::block_part() const {
  const auto parts = kUnits / schedule_.m16_tiles;
  return parts == 1 ? Affine(0) : remainder(Affine::of(kTile), parts);
}

std::vector<Affine> DecodeLowering::word_origin(const Affine& k_tile, const Affine& tile) const {
  const auto blocks = k_tile_blocks() / kept_.parts;
  return {row_block(tile), Affine::of(kSplit, blocks * schedule_.k_tiles()) + times(k_tile, blocks),
          times(block_part(), problem_.weight.bits * schedule_.m16_tiles / kUnits), 0, 0};
}

std::vector<Affine> DecodeLowering::group_origin(const PerGroup& part, const Affine& k_tile,
                                                 const Affine& tile) const {
  return {part.first(k_tile), row_block(tile), 0, 0, times(block_part(), 2 * schedule_.m16_tiles)};
}

void DecodeLowering::declare_weights() {
  const int b = problem_.weight.bits;
  const auto n_blocks = round_up(problem_.n, kBlock) / kBlock;
  const auto k_blocks = round_up(problem_.k, kBlock) / kBlock;
  // Part p has every block of the image that is p modulo their number.
  const std::int64_t parts = kept_.parts;
  for (std::int64_t part = 0; part < parts; ++part) {
    images_.push_back(view(weight_, {n_blocks, (k_blocks + parts - 1 - part) / parts, b, kLanes, 4},
                           {k_blocks * b * 128, parts * b * 128, 128, 4, 1}));
    program_.views[images_.back()].offset = part * b * 128;
  }
  for (int i = 0; i < kept_.k_tiles; ++i) {
    words_of_stage_.emplace_back();
    for (int part = 0; part < kept_.parts; ++part) {
      words_of_stage_.back().push_back(reg("words", Scalar::u32, word_layout()));
    }
  }
  declare_per_group();
  use_registers_of(0);
}

Layout DecodeLowering::groups_of_lanes(const PerGroup& part) const {
  return local({part.groups, 1, 1, 1, 1}) * spatial({1, 1, 8, 4, 1}) *
         local({1, 1, 1, 1, 2 * schedule_.m16_tiles});
}

// The table has a dimension of lanes that share a scale: all read
// the same element from global memory, each keeps its own in shared memory.
void DecodeLowering::declare_per_group() {
  const std::int64_t warps_k = schedule_.warps_k;
  groups_ = groups_of_k_tile(schedule_, problem_);
  for (PerGroup& part : per_group_) {
    const GroupOrder order =
        group_order(warp_columns(), warps_k, schedule_.k_tiles(), part.columns);
    part.groups = groups_in(warp_columns(), part);
    part.first = order.first;
    part.layout = spatial({1, schedule_.warps_n, 1, 1, 1}) * order.over_k * groups_of_lanes(part);
    const auto rows = spatial({1, schedule_.warps_n}) * replicated(warps_k, 2) *
                      local({part.groups, 1}) *
                      lifted(local({2 * schedule_.m16_tiles}) * spatial({8}) * replicated(4, 1));
    part.table = table_of(part);
    for (int i = 0; i < kept_.group_k_tiles; ++i) {
      part.pieces.push_back({reg(part.name + "_table", part.scalar, groups_in_registers(part)),
                             reg(part.name, part.scalar, rows)});
    }
  }
}

void DecodeLowering::load_weights(Body& body) {
  declare_weights();
  for (int k_tile = 0; k_tile < std::max(kept_.k_tiles, kept_.group_k_tiles); ++k_tile) {
    use_registers_of(k_tile);
    if (k_tile < kept_.k_tiles) load_words(body, k_tile, 0);
    if (k_tile < kept_.group_k_tiles) load_groups(body, k_tile, 0);
  }
  use_registers_of(0);
}

void DecodeLowering::use_registers_of(std::int64_t k_tile) {
  words_by_part_ = words_of_stage_[k_tile % kept_.k_tiles];
  words_ = words_by_part_.front();
  for (PerGroup& part : per_group_) {
    const auto [loaded, rows] = part.pieces[k_tile % kept_.group_k_tiles];
    part.loaded = loaded, part.rows = rows;
  }
}

// All are asked for at once, before the k-tiles that come first are multiplied.
void DecodeLowering::load_words(Body& body, const Affine& k_tile, const Affine& tile) {
  for (int part = 0; part < kept_.parts; ++part) load_part(body, part, k_tile, tile);
}

void DecodeLowering::load_part(Body& body, int part, const Affine& k_tile, const Affine& tile) {
  emit(body, Load{words_by_part_[part], images_[part], word_origin(k_tile, tile),
                  kept_.early ? Cache::now : Cache::once});
}

void DecodeLowering::load_groups(Body& body, const Affine& k_tile, const Affine& tile) {
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.loaded, part.table, group_origin(part, k_tile, tile),
                    kept_.early ? Cache::now : Cache::many});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

}  // namespace ladder
