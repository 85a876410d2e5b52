// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "layout/bit_plan.h"
#include "program/lower/lowering.h"

namespace ladder {
namespace {

constexpr std::int64_t kStep = 16;  // columns
constexpr std::int64_t kStepsPerBlock = kBlock / kStep;

}  // namespace

void Lowering::multiply(Body& body) {
  declare_operands(body);
  if (operands_.total != acc_) emit(body, Fill{operands_.total, {0, 0}});
  if (staged()) {
    ring_rounds(body);
  } else if (schedule_.rounds > 1) {
    register_rounds(body);
  } else {
    multiply_round(body, 0);
  }
  acc_ = operands_.total;
}

void Lowering::declare_operands(Body& body) {
  const std::int64_t tokens = schedule_.tokens;
  const auto sum_layout = [&](std::int64_t units) {
    return warps() * local({1, units, 1}) * local({1, 1, tokens / 8}) * lifted(instruction_.d());
  };
  Operands& o = operands_;
  o.a = reg("a", expr_.activation, warps() * local({1, kUnits, 1}) * lifted(instruction_.a()));
  o.b = reg("b", expr_.activation,
            replicated(schedule_.warps_n, 3) * spatial({schedule_.warps_k, 1, 1}) *
                local({1, tokens / 8, 1}) * lifted(instruction_.b()));
  acc_ = reg("acc", Scalar::f32, sum_layout(kUnits));
  o.total =
      groups_ > 1 || schedule_.rounds > 1 ? reg("total", Scalar::f32, sum_layout(kUnits)) : acc_;
  if (schedule_.route == Route::in_place) {
    const auto plan = unpack_plan(expr_.bits, linear_window(expr_.activation));
    double zero[2];
    for (int parity = 0; parity < 2; ++parity) {
      const int weight = linear_exponent(expr_.activation) + plan.pairs[parity].offset;
      o.scale_exponent[parity] = -weight;
      zero[parity] = -std::ldexp(expr_.zero, weight);
    }
    if (expr_.zero != 0) {
      o.zero_row = reg("zero", expr_.activation, warps() * lifted(instruction_.a()));
      o.zero_sum = reg("zero_sum", Scalar::f32, sum_layout(1));
      emit(body, Fill{o.zero_row, {zero[0], zero[1]}});
    }
  } else {
    o.scale_exponent[0] = o.scale_exponent[1] = -operand_exponent();
  }
  o.steps = kStepsPerBlock * schedule_.blocks_per_warp / groups_;
  o.group = variable("group", groups_);
  o.step = variable("step", o.steps);
  // The k-step of the round is group * steps + step, of block k-step / 4.
  if (o.steps >= kStepsPerBlock) {
    o.block = Affine::of(o.group, o.steps / kStepsPerBlock) + Affine::of(o.step, 1, kStepsPerBlock);
    o.in_block = remainder(Affine::of(o.step), kStepsPerBlock);
  } else {
    const auto per_block = kStepsPerBlock / o.steps;
    o.block = Affine::of(o.group, 1, per_block);
    o.in_block = times(remainder(Affine::of(o.group), per_block), o.steps) + Affine::of(o.step);
  }
}

void Lowering::multiply_round(Body& body, const Affine& round) {
  const Operands& o = operands_;
  const bool in_place = schedule_.route == Route::in_place, zero_product = o.zero_row >= 0;
  const auto column = Affine::of(o.group, o.steps * kStep) + Affine::of(o.step, kStep) +
                      times(round, round_blocks() * kBlock);
  Body per_step, per_group;
  emit(per_step, LoadMatrix{o.b, x_warp_, {0, 0, column}});
  emit(per_step, Unpack{o.a, words_, o.block, o.in_block, expr_.bits, in_place,
                        in_place ? 0 : expr_.zero, in_place ? 0 : operand_exponent()});
  emit(per_step, Mma{acc_, o.a, o.b});
  if (zero_product) emit(per_step, Mma{o.zero_sum, o.zero_row, o.b});
  emit(per_group, Fill{acc_, {0, 0}});
  if (zero_product) emit(per_group, Fill{o.zero_sum, {0, 0}});
  emit(per_group, For{o.step, o.steps, std::move(per_step)});
  if (zero_product) emit(per_group, Add{acc_, o.zero_sum});
  emit(per_group, Scale{o.total,
                        acc_,
                        scale_,
                        Affine::of(o.group),
                        {o.scale_exponent[0], o.scale_exponent[1]},
                        o.total != acc_});
  emit(body, For{o.group, groups_, std::move(per_group)});
}

void Lowering::ring_rounds(Body& body) {
  const auto round = Affine::of(round_);
  Body each;
  emit(each, Wait{schedule_.stages - 2});
  emit(each, Load{words_, ring_, ring_origin(round)});
  emit(each, Load{loaded_scale_, scale_ring_, scale_ring_origin(round)});
  emit(each, Reinterpret{scale_, loaded_scale_});
  fetch(each, round + Affine(schedule_.stages - 1));
  multiply_round(each, round);
  emit(body, For{round_, schedule_.rounds, std::move(each), 1});
}

// The next round's words are on their way to registers while this round's are multiplied.
void Lowering::register_rounds(Body& body) {
  round_ = variable("round", schedule_.rounds - 1);
  const auto round = Affine::of(round_), following = round + Affine(1);
  const auto next = reg("next_words", Scalar::u32, word_layout());
  const auto next_scale = reg("next_scale", *expr_.scale, scale_layout_);
  Body each;
  emit(each, Load{next, image_, word_origin(following), Cache::once});
  emit(each, Load{next_scale, table_, scale_origin(following)});
  multiply_round(each, round);
  emit(each, Reinterpret{words_, next});
  emit(each, Reinterpret{loaded_scale_, next_scale});
  emit(each, Reinterpret{scale_, loaded_scale_});
  emit(body, For{round_, schedule_.rounds - 1, std::move(each), 2});
  multiply_round(body, schedule_.rounds - 1);
}

// The largest power of two that the multiply-add can give to (code - zero).
int Lowering::operand_exponent() const {
  const int largest = expr_.activation == Scalar::f16 ? 15 : 127;
  return largest + linear_exponent(expr_.activation);
}

}  // namespace ladder
