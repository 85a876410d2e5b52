// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/integers.h"
#include "pipelines/decode/lowering.h"

namespace ladder {

Layout DecodeLowering::word_layout() const {
  return spatial({schedule_.warps_n, 1, 1, 1, 1}) * spatial({1, schedule_.warps_k, 1, 1, 1}) *
         local({1, schedule_.blocks_per_warp / word_parts(),
                problem_.weight.bits * schedule_.units / kUnits, 1, 1}) *
         spatial({1, 1, 1, kLanes, 1}) * local({1, 1, 1, 1, 4});
}

Affine DecodeLowering::row_block(const Affine& sweep) const {
  const auto parts = kUnits / schedule_.units;
  return Affine::of(kTile, schedule_.warps_n, parts) +
         times(sweep, schedule_.tiles(problem_.n) * schedule_.warps_n / parts);
}

Affine DecodeLowering::block_part() const {
  const auto parts = kUnits / schedule_.units;
  return parts == 1 ? Affine(0) : remainder(Affine::of(kTile), parts);
}

std::vector<Affine> DecodeLowering::word_origin(const Affine& round, const Affine& sweep) const {
  const auto blocks = round_blocks() / word_parts();
  return {row_block(sweep), Affine::of(kSplit, blocks * schedule_.rounds) + times(round, blocks),
          times(block_part(), problem_.weight.bits * schedule_.units / kUnits), 0, 0};
}

std::vector<Affine> DecodeLowering::group_origin(const Affine& round, const Affine& sweep) const {
  return {first_group_(round), row_block(sweep), 0, 0, times(block_part(), 2 * schedule_.units)};
}

void DecodeLowering::declare_weights() {
  const int b = problem_.weight.bits;
  const auto n_blocks = round_up(problem_.n, kBlock) / kBlock;
  const auto k_blocks = round_up(problem_.k, kBlock) / kBlock;
  // Part p has every block of the image that is p modulo their number.
  const std::int64_t parts = word_parts();
  for (std::int64_t part = 0; part < parts; ++part) {
    images_.push_back(view(weight_, {n_blocks, (k_blocks + parts - 1 - part) / parts, b, kLanes, 4},
                           {k_blocks * b * 128, parts * b * 128, 128, 4, 1}));
    program_.views[images_.back()].offset = part * b * 128;
  }
  for (int i = 0; i < std::max(schedule_.depth, 1); ++i) {
    pieces_.emplace_back();
    for (int part = 0; part < word_parts(); ++part) {
      pieces_.back().push_back(reg("words", Scalar::u32, word_layout()));
    }
  }
  declare_per_group(n_blocks);
  use_piece(0);
}

// The table has a dimension of lanes that share a scale: all read
// the same element from global memory, each keeps its own in shared memory.
void DecodeLowering::declare_per_group(std::int64_t n_blocks) {
  const std::int64_t warps_k = schedule_.warps_k;
  groups_ = groups_of_round(schedule_, problem_);
  const GroupOrder order = group_order(warp_columns(), warps_k, schedule_.rounds);
  first_group_ = order.first;
  const auto of_lanes = local({groups_, 1, 1, 1, 1}) * spatial({1, 1, 8, 4, 1}) *
                        local({1, 1, 1, 1, 2 * schedule_.units});
  group_layout_ = spatial({1, schedule_.warps_n, 1, 1, 1}) * order.over_k * of_lanes;
  // [stage and warp]: in the ring each warp has its own copy.
  group_ring_layout_ = spatial({1, schedule_.warps_n * warps_k, 1, 1, 1}) * of_lanes;
  const auto rows = spatial({1, schedule_.warps_n}) * replicated(warps_k, 2) * local({groups_, 1}) *
                    lifted(local({2 * schedule_.units}) * spatial({8}) * replicated(4, 1));
  for (PerGroup& part : per_group_) {
    part.table = view(part.buffer, {problem_.groups(), n_blocks, 8, 4, 8},
                      {n_blocks * kBlock, kBlock, 8, 0, 1});
    for (int i = 0; i < group_depth(); ++i) {
      part.pieces.push_back(
          {reg(part.name + "_table", part.scalar, staged() ? group_ring_layout_ : group_layout_),
           reg(part.name, part.scalar, rows)});
    }
  }
}

void DecodeLowering::load_weights(Body& body) {
  declare_weights();
  for (int round = 0; round < std::max(schedule_.depth, group_depth()); ++round) {
    use_piece(round);
    if (round < std::max(schedule_.depth, 1)) refill_words(body, round, 0);
    if (round < group_depth()) refill_groups(body, round, 0);
  }
  use_piece(0);
}

// A scale that is asked for with the last words arrives after them, and nothing is left to hide it:
// those of all rounds are few and come with the first.
int DecodeLowering::group_depth() const {
  return schedule_.sharers > 0 && schedule_.depth > 0 ? schedule_.rounds
                                                      : std::max(schedule_.depth, 1);
}

void DecodeLowering::use_piece(std::int64_t round) {
  word_parts_of_round_ = pieces_[round % std::max(schedule_.depth, 1)];
  words_ = word_parts_of_round_.front();
  for (PerGroup& part : per_group_) {
    const auto [loaded, rows] = part.pieces[round % group_depth()];
    part.loaded = loaded, part.rows = rows;
  }
}

// What a depth keeps is asked for at once, before the rounds that come first are multiplied.
void DecodeLowering::refill_words(Body& body, const Affine& round, const Affine& sweep) {
  for (int part = 0; part < word_parts(); ++part) refill_part(body, part, round, sweep);
}

// Before the wait of a dependent launch, too, and not where the assembler would move them.
bool DecodeLowering::loads_now() const {
  return schedule_.depth > 0 || schedule_.sharers > 0 || schedule_.dependent_launch;
}

void DecodeLowering::refill_part(Body& body, int part, const Affine& round, const Affine& sweep) {
  emit(body, Load{word_parts_of_round_[part], images_[part], word_origin(round, sweep),
                  loads_now() ? Cache::now : Cache::once});
}

void DecodeLowering::refill_groups(Body& body, const Affine& round, const Affine& sweep) {
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.loaded, part.table, group_origin(round, sweep),
                    loads_now() ? Cache::now : Cache::many});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

void DecodeLowering::load_round(Body& body, const Affine& round) {
  emit(body, Load{words_, ring_, ring_origin(round)});
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.loaded, part.ring, group_ring_origin(round)});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

void DecodeLowering::load_next(Body& body, const Affine& round) {
  next_words_ = reg("next_words", Scalar::u32, word_layout());
  for (PerGroup& part : per_group_) {
    part.next = reg("next_" + part.name, part.scalar, group_layout_);
  }
  emit(body, Load{next_words_, images_.front(), word_origin(round), Cache::once});
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.next, part.table, group_origin(round)});
  }
}

void DecodeLowering::take_next(Body& body) {
  emit(body, Reinterpret{words_, next_words_});
  for (const PerGroup& part : per_group_) {
    emit(body, Reinterpret{part.loaded, part.next});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

// Shared memory for `stages` rounds: what each thread copies and later reads itself.
void DecodeLowering::declare_ring() {
  declare_weights();
  const std::int64_t b = problem_.weight.bits, stages = schedule_.stages,
                     warps_n = schedule_.warps_n;
  const auto words = round_blocks() * b * 128;  // of one row of blocks
  ring_buffer_ = buffer("ring", Level::shared, Scalar::u32, shared_.words);
  if (shared_.sums_over_words) sums_.over = ring_buffer_;
  ring_ = view(ring_buffer_, {stages * warps_n, round_blocks(), b, kLanes, 4},
               {words, b * 128, 128, 4, 1});
  // Scales: [stage and warp][group][g][lane of four][j], 256 per warp and group.
  const auto warps = warps_n * schedule_.warps_k;
  for (PerGroup& part : per_group_) {
    const auto all = buffer(part.name + "_ring", Level::shared, part.scalar, shared_.per_group);
    part.ring = view(all, {groups_, stages * warps, 8, 4, 8}, {256, groups_ * 256, 32, 8, 1});
  }
  round_ = variable("round", schedule_.rounds);
}

std::vector<Affine> DecodeLowering::ring_origin(const Affine& round) const {
  return {times(remainder(round, schedule_.stages), schedule_.warps_n), 0, 0, 0, 0};
}

std::vector<Affine> DecodeLowering::group_ring_origin(const Affine& round) const {
  const auto warps = schedule_.warps_n * schedule_.warps_k;
  return {0, times(remainder(round, schedule_.stages), warps), 0, 0, 0};
}

void DecodeLowering::fetch(Body& body, const Affine& round) {
  emit(body, CopyOwn{ring_, images_.front(), word_layout(), word_layout(), ring_origin(round),
                     word_origin(round), round, schedule_.rounds});
  for (const PerGroup& part : per_group_) {
    emit(body, CopyOwn{part.ring, part.table, group_ring_layout_, group_layout_,
                       group_ring_origin(round), group_origin(round), round, schedule_.rounds});
  }
  emit(body, Commit{});
}

}  // namespace ladder
