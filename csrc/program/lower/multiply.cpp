// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "layout/in_place.h"
#include "program/lower/lowering.h"

namespace ladder {
namespace {

// Sweeps whose sums are on their way from the peers of a cluster together.
constexpr int kSweepsInFlight = 8;
// More deep rounds of a block than this are a loop.
constexpr int kMostWrittenRounds = 8;

}  // namespace

void Lowering::multiply(Body& body) {
  declare_operands(body);
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

void Lowering::begin_sums(Body& body) {
  if (operands_.total != acc_ || decoding_.scaled) emit(body, Fill{operands_.total, {0, 0}});
}

void Lowering::end_sums(Body& body) {
  const Operands& o = operands_;
  acc_ = o.total;
  join_digits(body);
  if (o.last_exponent[0] == 0 && o.last_exponent[1] == 0) return;
  emit(body, Scale{acc_, acc_, -1, 0, {o.last_exponent[0], o.last_exponent[1]}, false});
}

void Lowering::join_digits(Body& body) {
  if (digits()) emit(body, JoinDigits{acc_, unit_, expr_.activation});
}

void Lowering::declare_operands(Body& body) {
  const std::int64_t tokens = schedule_.tokens;
  const auto sum_layout = [&](std::int64_t rows_of_16) {
    return warps() * local({1, rows_of_16, 1}) * local({1, 1, tokens / instruction_.n}) *
           lifted(instruction_.d());
  };
  Operands& o = operands_;
  const std::int64_t units = schedule_.units;
  // Codes as bytes have no sign.
  o.a = reg("a", digits() ? Scalar::u8 : operand_,
            warps() * local({1, units, 1}) * lifted(instruction_.a()));
  o.b = reg("b", operand_,
            replicated(schedule_.warps_n, 3) * spatial({schedule_.warps_k, 1, 1}) *
                local({1, tokens / instruction_.n, 1}) * lifted(instruction_.b()));
  acc_ = reg("acc", instruction_.accumulator, sum_layout(units));
  o.total = (groups_ > 1 || schedule_.rounds > 1 || digits()) && !decoding_.scaled
                ? reg("total", Scalar::f32, sum_layout(units))
                : acc_;
  double zero[2] = {0, 0};  // a row of the operand that multiplies the activations once more
  if (decoding_.kind != Decoding::Kind::integers) {
    o.scale_exponent[0] = o.scale_exponent[1] = -decoding_.exponent;
  } else if (digits()) {
    for (int parity = 0; parity < 2; ++parity) {
      const int offset = byte_plan(expr_.bits).offset[parity];
      o.scale_exponent[parity] = expr_.exponent + expr_.shift - offset;
      zero[parity] = -std::ldexp(expr_.zero, offset - expr_.shift);
    }
  } else if (schedule_.route == Route::in_place) {
    const InPlace& codes = in_place(expr_.bits, expr_.activation);
    for (int parity = 0; parity < 2; ++parity) {
      o.scale_exponent[parity] = expr_.exponent - codes.exponent[parity];
      zero[parity] = -codes.base - std::ldexp(expr_.zero, codes.exponent[parity]);
    }
  } else {
    o.scale_exponent[0] = o.scale_exponent[1] = expr_.exponent - operand_exponent();
  }
  if (zeros_by_product()) {
    // Minus one in the unit of the sums: stored zero points multiply the sum of the activations.
    for (int parity = 0; parity < 2; ++parity) {
      zero[parity] = -std::ldexp(1.0, -o.scale_exponent[parity]);
    }
  }
  // Operands have their scales; or scales of e8m0 times the unit would be infinite, and NaN where a
  // group's sum is zero.
  const bool large =
      expr_.scale == Scalar::e8m0 && std::max(o.scale_exponent[0], o.scale_exponent[1]) > 0;
  for (int parity = 0; (decoding_.scaled || large) && parity < 2; ++parity) {
    o.last_exponent[parity] = std::exchange(o.scale_exponent[parity], 0);
  }
  if (zero[0] != 0) {
    o.zero_row = reg("zero", operand_, warps() * lifted(instruction_.a()));
    o.zero_sum = reg("zero_sum", instruction_.accumulator, sum_layout(1));
    emit(body, Fill{o.zero_row, {zero[0], zero[1]}});
  }
  const std::int64_t per_block = kBlock / step_columns();
  o.steps = per_block * schedule_.blocks_per_warp / groups_ / word_parts();
  o.group = variable("group", groups_);
  o.step = variable("step", o.steps);
  // The k-step of a part is group * steps + step, of block k-step / per_block.
  if (o.steps >= per_block) {
    o.block = Affine::of(o.group, o.steps / per_block) + Affine::of(o.step, 1, per_block);
    o.in_block = remainder(Affine::of(o.step), per_block);
  } else {
    const auto groups = per_block / o.steps;
    o.block = Affine::of(o.group, 1, groups);
    o.in_block = times(remainder(Affine::of(o.group), groups), o.steps) + Affine::of(o.step);
  }
}

void Lowering::multiply_round(Body& body, const Affine& round, const AfterPart& after) {
  const Operands& o = operands_;
  const bool zero_known = !o.zero_sums.empty(), zero_product = o.zero_row >= 0 && !zero_known;
  Body per_group;
  prepare_group(per_group);
  // Sums start from what the zero point adds where that is known, else it joins them at the end.
  const bool adds_zero = o.zero_row >= 0 && !zeros_by_product();
  if (adds_zero && zero_known) {
    emit(per_group, Spread{acc_, o.zero_sum});
  } else if (!decoding_.scaled) {
    emit(per_group, Fill{acc_, {0, 0}});
  }
  if (zero_product) emit(per_group, Fill{o.zero_sum, {0, 0}});
  for (int part = 0; part < word_parts(); ++part) {
    Body per_step;
    if (schedule_.by_blocks) words_ = word_parts_of_round_[part];
    load_activations(per_step, round, part);
    decode_step(per_step);
    emit(per_step, Mma{&instruction_, acc_, o.a, o.b});
    if (zero_product) emit(per_step, Mma{&instruction_, o.zero_sum, o.zero_row, o.b});
    emit(per_group, For{o.step, o.steps, std::move(per_step)});
    if (after) after(per_group, part);
  }
  if (adds_zero && !zero_known) emit(per_group, Add{acc_, o.zero_sum});
  if (expr_.stored_zero != Zero::rescale) subtract_zeros(per_group);
  if (!decoding_.scaled) {
    emit(per_group, Scale{o.total,
                          acc_,
                          scale_rows(),
                          Affine::of(o.group),
                          {o.scale_exponent[0], o.scale_exponent[1]},
                          o.total != acc_});
  }
  if (expr_.stored_zero == Zero::rescale) subtract_zeros(per_group);
  emit(body, For{o.group, groups_, std::move(per_group)});
  release_activations(body, round);
}

void Lowering::load_activations(Body& body, const Affine& round, int part) {
  const Operands& o = operands_;
  const auto column = Affine::of(o.group, o.steps * word_parts() * step_columns()) +
                      Affine::of(o.step, step_columns()) + Affine(part * o.steps * step_columns());
  emit(body,
       LoadMatrix{
           &instruction_, o.b, x_warp_, {0, staged_row(round), column + staged_column(round)}});
}

// The zero point's products are the same for all rows, so for all sweeps.
void Lowering::multiply_zeros(Body& body) {
  Operands& o = operands_;
  if (o.zero_row < 0 || groups_ > 1 || x_in_rounds()) return;
  for (int round = 0; round < schedule_.rounds; ++round) {
    o.zero_sums.push_back(round == 0 ? o.zero_sum
                                     : reg("zero_sum", instruction_.accumulator,
                                           Layout(program_.registers[o.zero_sum].layout)));
    Body once;
    emit(body, Fill{o.zero_sums.back(), {0, 0}});
    for (int part = 0; part < word_parts(); ++part) {
      Body per_step;
      load_activations(per_step, round, part);
      emit(per_step, Mma{&instruction_, o.zero_sums.back(), o.zero_row, o.b});
      emit(once, For{o.step, o.steps, std::move(per_step)});
    }
    emit(body, For{o.group, groups_, std::move(once)});
  }
}

void Lowering::ring_rounds(Body& body) {
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
void Lowering::register_rounds(Body& body) {
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
void Lowering::deep_rounds(Body& body, const Affine& sweep) {
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
    if (!operands_.zero_sums.empty()) operands_.zero_sum = operands_.zero_sums[round];
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

void Lowering::sweeps(Body& body) {
  declare_operands(body);
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
      finish(sums, first_row(sweep));
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
