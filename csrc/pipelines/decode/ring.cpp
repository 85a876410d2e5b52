// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/ring.h"

#include "base/integers.h"

namespace ladder {

void RingLowering::load_first(Body& body) {
  declare_ring();
  const std::int64_t ahead = way_.stages - 1;
  if (schedule_.dependent_launch) {
    for (std::int64_t i = 0; i + 1 < ahead; ++i) fetch(body, i);
    await_preceding(body);
    first_activations(body);
    fetch(body, ahead - 1);
    await_activations(body, 1);
  } else if (in_stages()) {
    declare_activations();
    for (std::int64_t i = 0; i < ahead; ++i) copy_activations(body, i), fetch(body, i);
  } else {
    if (!digits()) first_activations(body);
    for (std::int64_t i = 0; i < ahead; ++i) fetch(body, i);
    if (digits()) first_activations(body);
    await_activations(body, static_cast<int>(ahead));
  }
}

void RingLowering::main_loop(Body& body) {
  const auto k_tile = Affine::of(k_tile_);
  Body each;
  emit(each, Wait{way_.stages - 2});
  next_activations(each, k_tile);
  load_k_tile(each, k_tile);
  fetch(each, k_tile + Affine(way_.stages - 1));
  multiply_k_tile(each, k_tile);
  emit(body, For{k_tile_, way_.k_tiles, std::move(each), 1});
}

void RingLowering::declare_ring() {
  declare_weights();
  const std::int64_t b = problem_.weight.bits, stages = way_.stages, warps_n = schedule_.warps_n;
  const auto words = k_tile_blocks() * b * 128;  // of one row of blocks
  const auto all_words = buffer("ring", Level::shared, Scalar::u32, shared_.words);
  if (shared_.sums_over_words) sums_.over = all_words;
  ring_ = view(all_words, {stages * warps_n, k_tile_blocks(), b, kLanes, 4},
               {words, b * 128, 128, 4, 1});
  // Scales: [stage and warp][group][g][lane of four][j].
  const auto warps = warps_n * schedule_.warps_k;
  for (PerGroup& part : per_group_) {
    const auto elements = stages * warps * part.groups * kOfGroup;
    const auto all = buffer(part.name + "_ring", Level::shared, part.scalar, elements);
    part.ring = view(all, {part.groups, stages * warps, 8, 4, 8},
                     {kOfGroup, part.groups * kOfGroup, 32, 8, 1});
  }
  k_tile_ = variable("k_tile", way_.k_tiles);
}

// [stage and warp]: in the ring each warp has its own copy.
Layout RingLowering::groups_in_registers(const PerGroup& part) const {
  return spatial({1, std::int64_t{schedule_.warps_n} * schedule_.warps_k, 1, 1, 1}) *
         groups_of_lanes(part);
}

std::vector<Affine> RingLowering::word_place(const Affine& k_tile) const {
  return {times(remainder(k_tile, way_.stages), schedule_.warps_n), 0, 0, 0, 0};
}

std::vector<Affine> RingLowering::group_place(const Affine& k_tile) const {
  const auto warps = schedule_.warps_n * schedule_.warps_k;
  return {0, times(remainder(k_tile, way_.stages), warps), 0, 0, 0};
}

void RingLowering::fetch(Body& body, const Affine& k_tile) {
  emit(body, CopyOwn{ring_, images_.front(), word_layout(), word_layout(), word_place(k_tile),
                     word_origin(k_tile), k_tile, way_.k_tiles});
  for (const PerGroup& part : per_group_) {
    emit(body, CopyOwn{part.ring, part.table, groups_in_registers(part), part.layout,
                       group_place(k_tile), group_origin(part, k_tile), k_tile, way_.k_tiles});
  }
  emit(body, Commit{});
}

void RingLowering::load_k_tile(Body& body, const Affine& k_tile) {
  emit(body, Load{words_, ring_, word_place(k_tile)});
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.loaded, part.ring, group_place(k_tile)});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

}  // namespace ladder
