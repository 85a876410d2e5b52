// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "pipelines/decode/lowering.h"

namespace ladder {
namespace {

// Sweeps whose sums are on their way from the peers of a cluster together.
constexpr int kSweepsInFlight = 8;
// More deep rounds of a block than this are a loop.
constexpr int kMostWrittenRounds = 8;

}  // namespace

void DecodeLowering::multiply(Body& body) {
  declare_operands(body, tiling());
  declare_loops();
  begin_sums(body);
  if (schedule_.depth > 0) {
    deep_rounds(body, 0);
  } else if (staged()) {
    ring_rounds(body);
  } else if (schedule_.rounds > 1) {
    register_rounds(body);
  } else {
    multiply_round(body, 0);
  }
}

void DecodeLowering::declare_loops() {
  const auto [group, step, count] =
      declare_steps(groups_, kBlock / step_columns() * schedule_.blocks_per_warp / word_parts());
  group_ = group, step_ = step, steps_ = count;
}

void DecodeLowering::multiply_round(Body& body, const Affine& round, const AfterPart& after) {
  operands_.zero_known = !zero_sums_.empty();
  Body per_group;
  begin_group(per_group);
  for (int part = 0; part < word_parts(); ++part) {
    Body per_step;
    if (schedule_.by_blocks) words_ = word_parts_of_round_[part];
    load_activations(per_step, round, part);
    multiply_step(per_step);
    emit(per_group, For{step_, steps_, std::move(per_step)});
    if (after) after(per_group, part);
  }
  end_group(per_group);
  emit(body, For{group_, groups_, std::move(per_group)});
  release_activations(body, round);
}

void DecodeLowering::load_activations(Body& body, const Affine& round, int part) {
  const Operands& o = operands_;
  const auto column = Affine::of(group_, steps_ * word_parts() * step_columns()) +
                      Affine::of(step_, step_columns()) + Affine(part * steps_ * step_columns());
  emit(body,
       LoadMatrix{
           &instruction_, o.b, x_warp_, {0, staged_row(round), column + staged_column(round)}});
}

// The zero point's products are the same for all rows, so for all sweeps.
void DecodeLowering::multiply_zeros(Body& body) {
  Operands& o = operands_;
  if (o.zero_row < 0 || groups_ > 1 || x_in_rounds()) return;
  for (int round = 0; round < schedule_.rounds; ++round) {
    zero_sums_.push_back(round == 0 ? o.zero_sum
                                    : reg("zero_sum", instruction_.accumulator,
                                          Layout(program_.registers[o.zero_sum].layout)));
    Body once;
    emit(body, Fill{zero_sums_.back(), {0, 0}});
    for (int part = 0; part < word_parts(); ++part) {
      Body per_step;
      load_activations(per_step, round, part);
      emit(per_step, Mma{&instruction_, zero_sums_.back(), o.zero_row, o.b});
      emit(once, For{step_, steps_, std::move(per_step)});
    }
    emit(body, For{group_, groups_, std::move(once)});
  }
}

void DecodeLowering::ring_rounds(Body& body) {
  const auto round = Affine::of(round_);
  Body each;
  emit(each, Wait{schedule_.stages - 2});
  next_activations(each, round);
  load_round(each, round);
  fetch(each, round + Affine(schedule_.stages - 1));
  multiply_round(each, round);
  emit(body, For{round_, schedule_.rounds, std::move(each), 1});
}

// The next round's words are on their way to registers while this round's are multiplied.
void DecodeLowering::register_rounds(Body& body) {
  round_ = variable("round", schedule_.rounds - 1);
  const auto round = Affine::of(round_), following = round + Affine(1);
  Body each;
  load_next(each, following);
  next_activations(each, round);
  multiply_round(each, round);
  take_next(each);
  emit(body, For{round_, schedule_.rounds - 1, std::move(each), 2});
  next_activations(body, schedule_.rounds - 1);
  multiply_round(body, schedule_.rounds - 1);
}

// Rounds are written out by as many as have registers of their own, or all of a sweep or of a few.
// What was multiplied makes room for the same of the round `depth` later, which may be of the next
// tile of rows; past the last tile nothing is loaded.
void DecodeLowering::deep_rounds(Body& body, const Affine& sweep) {
  const int depth = schedule_.depth;
  const bool few = schedule_.rounds <= kMostWrittenRounds && !x_in_rounds();
  const int turns = few || schedule_.sweeps > 1 ? 0 : schedule_.rounds / depth - 1;
  if (turns > 0) {
    const auto turn = variable("turn", turns);
    Body each;
    for (int piece = 0; piece < depth; ++piece) {
      const auto round = Affine::of(turn, depth) + Affine(piece);
      use_piece(piece);
      next_activations(each, round);
      const auto refill = [&](Body& into, int part) {
        refill_part(into, part, round + Affine(depth), sweep);
      };
      multiply_round(each, round, schedule_.by_blocks ? refill : AfterPart());
      if (!schedule_.by_blocks) refill(each, 0);
      refill_groups(each, round + Affine(depth), sweep);
    }
    emit(body, For{turn, turns, std::move(each), 1});
  }
  for (int round = turns * depth; round < schedule_.rounds; ++round) {
    use_piece(round);
    if (!zero_sums_.empty()) operands_.zero_sum = zero_sums_[round];
    next_activations(body, round, sweep);
    const auto again = [&](int following, const auto& refill) {
      if (following < schedule_.rounds) {
        refill(following, sweep);
      } else if (schedule_.sweeps > 1) {
        refill(following - schedule_.rounds, sweep + Affine(1));
      }
    };
    const auto refill = [&](Body& into, int part) {
      again(round + depth,
            [&](int following, const Affine& in) { refill_part(into, part, following, in); });
    };
    // Rounds of the next tile of rows are there or not: conditions are kept out of the products.
    const bool by_blocks = schedule_.by_blocks && round + depth < schedule_.rounds;
    multiply_round(body, round, by_blocks ? refill : AfterPart());
    for (int part = 0; part < word_parts() && !by_blocks; ++part) refill(body, part);
    again(round + group_depth(),
          [&](int following, const Affine& in) { refill_groups(body, following, in); });
  }
}

void DecodeLowering::sweeps(Body& body) {
  declare_operands(body, tiling());
  declare_loops();
  multiply_zeros(body);
  const auto number = variable("sweep", schedule_.sweeps);
  const auto sweep = Affine::of(number);
  const RegisterId round_sums = acc_;
  const bool cluster = schedule_.reduction == Reduction::cluster;
  Body each;
  begin_sums(each);
  deep_rounds(each, sweep);
  // The sums of the last sweep that used the place have been read; where two places take turns, or
  // activations come in rounds, all threads have been at a barrier since.
  if (schedule_.sum_places == 1 && !x_in_rounds()) emit(each, Barrier{});
  add_warps(each, sweep, [&](Body& sums) {
    if (cluster) {
      keep_sums(sums, sweep);
    } else {
      finish(sums, sums_.first_row(sweep));
    }
  });
  acc_ = round_sums;
  emit(body, For{number, schedule_.sweeps, std::move(each), 1});
  if (!cluster) return;
  emit(body, ClusterBarrier{});
  declare_sums(rows() / program_.cluster);
  Body last;
  add_kept(last, sweep);
  emit(body, For{number, schedule_.sweeps, std::move(last), kSweepsInFlight});
  emit(body, ClusterBarrier{});
}

}  // namespace ladder
