// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/register_stages.h"

namespace ladder {
namespace {

// Tiles of rows whose sums are on their way from the peers of a cluster together.
constexpr int kTilesInFlight = 8;
// More k-tiles of a CTA than this are a loop.
constexpr int kMostWritten = 8;

}  // namespace

// A scale that is asked for with the last words arrives after them, and nothing is left to hide it:
// where a bulk copy brings the activations, those of all k-tiles are few and come with the first.
RegisterStagesLowering::RegisterStagesLowering(const Decisions& decisions,
                                               const DecodeSchedule& schedule,
                                               const weights::RegisterStages& way)
    : DecodeLowering(decisions, schedule,
                     {.k_tiles = way.stages,
                      .group_k_tiles = schedule.bulk_copy() != nullptr ? way.k_tiles : way.stages,
                      .parts = way.block_by_block ? schedule.blocks_per_warp : 1,
                      .early = true}),
      way_(way) {}

void RegisterStagesLowering::multiply(Body& body) {
  if (way_.tiles_per_cta > 1) {
    persistent_loop(body);
  } else {
    DecodeLowering::multiply(body);
  }
}

// K-tiles are written out by as many as have registers of their own, or all of a tile of rows or of
// a few. What was multiplied makes room for the same of the k-tile `stages` later, which may be of
// the next tile of rows; past the last tile nothing is loaded.
void RegisterStagesLowering::k_tiles_of_tile(Body& body, const Affine& tile) {
  const bool few = way_.k_tiles <= kMostWritten && !in_stages();
  const int turns = few || way_.tiles_per_cta > 1 ? 0 : way_.k_tiles / way_.stages - 1;
  if (turns > 0) loop_of_turns(body, turns, tile);
  for (int k_tile = turns * way_.stages; k_tile < way_.k_tiles; ++k_tile) {
    one_k_tile(body, k_tile, tile);
  }
}

void RegisterStagesLowering::loop_of_turns(Body& body, int turns, const Affine& tile) {
  const auto turn = variable("turn", turns);
  Body each;
  for (int stage = 0; stage < way_.stages; ++stage) {
    const auto k_tile = Affine::of(turn, way_.stages) + Affine(stage);
    const auto following = k_tile + Affine(way_.stages);
    use_registers_of(stage);
    next_activations(each, k_tile);
    const auto load_anew = [&](Body& into, int part) { load_part(into, part, following, tile); };
    multiply_k_tile(each, k_tile, way_.block_by_block ? load_anew : AfterPart());
    if (!way_.block_by_block) load_anew(each, 0);
    load_groups(each, following, tile);
  }
  emit(body, For{turn, turns, std::move(each), 1});
}

void RegisterStagesLowering::one_k_tile(Body& body, int k_tile, const Affine& tile) {
  use_registers_of(k_tile);
  if (!zero_sums_.empty()) operands_.zero_sum = zero_sums_[k_tile];
  next_activations(body, k_tile, tile);
  // `load` the k-tile `ahead` of this one, of this tile of rows or the next.
  const auto anew = [&](int ahead, const auto& load) {
    const int following = k_tile + ahead;
    if (following < way_.k_tiles) {
      load(following, tile);
    } else if (way_.tiles_per_cta > 1) {
      load(following - way_.k_tiles, tile + Affine(1));
    }
  };
  const auto load_anew = [&](Body& into, int part) {
    anew(way_.stages,
         [&](int following, const Affine& of) { load_part(into, part, following, of); });
  };
  // K-tiles of the next tile of rows are there or not: conditions are kept out of the products.
  const bool by_blocks = way_.block_by_block && k_tile + way_.stages < way_.k_tiles;
  multiply_k_tile(body, k_tile, by_blocks ? load_anew : AfterPart());
  for (int part = 0; part < kept_.parts && !by_blocks; ++part) load_anew(body, part);
  anew(kept_.group_k_tiles,
       [&](int following, const Affine& of) { load_groups(body, following, of); });
}

// The zero point's products are the same for all rows, so for all tiles of a CTA.
void RegisterStagesLowering::multiply_zeros(Body& body) {
  Operands& o = operands_;
  if (o.zero_row < 0 || groups_ > 1 || in_stages()) return;
  for (int k_tile = 0; k_tile < way_.k_tiles; ++k_tile) {
    zero_sums_.push_back(k_tile == 0 ? o.zero_sum
                                     : reg("zero_sum", instruction_.accumulator,
                                           Layout(program_.registers[o.zero_sum].layout)));
    Body once;
    emit(body, Fill{zero_sums_.back(), {0, 0}});
    for (int part = 0; part < kept_.parts; ++part) {
      Body per_step;
      load_activations(per_step, k_tile, part);
      emit(per_step, Mma{&instruction_, zero_sums_.back(), o.zero_row, o.b});
      emit(once, For{step_, steps_, std::move(per_step)});
    }
    emit(body, For{group_, groups_, std::move(once)});
  }
  o.zero_known = true;
}

void RegisterStagesLowering::persistent_loop(Body& body) {
  declare_products(body);
  multiply_zeros(body);
  const auto number = variable("sweep", way_.tiles_per_cta);
  const auto tile = Affine::of(number);
  const RegisterId sums_of_k_tiles = acc_;
  const bool cluster = schedule_.reduction == Reduction::cluster;
  Body each;
  begin_sums(each);
  k_tiles_of_tile(each, tile);
  // The sums of the last tile that used the buffer have been read; where two buffers take turns, or
  // activations come in stages, all threads have been at a barrier since.
  if (way_.reduction_buffers == 1 && !in_stages()) emit(each, Barrier{});
  add_warps(each, tile, [&](Body& sums) {
    if (cluster) {
      keep_sums(sums, tile);
    } else {
      finish(sums, sums_.first_row(tile));
    }
  });
  acc_ = sums_of_k_tiles;
  emit(body, For{number, way_.tiles_per_cta, std::move(each), 1});
  if (!cluster) return;
  emit(body, ClusterBarrier{});
  declare_sums(rows() / program_.cluster);
  Body last;
  add_kept(last, tile);
  emit(body, For{number, way_.tiles_per_cta, std::move(last), kTilesInFlight});
  emit(body, ClusterBarrier{});
}

}  // namespace ladder
