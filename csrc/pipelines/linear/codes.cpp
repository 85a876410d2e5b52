// SPDX-License-Identifier: Apache-2.0
// From stored codes to operands, and the products of a group.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "layout/digits.h"
#include "layout/in_place.h"
#include "layout/weight_image.h"
#include "pipelines/linear/linear_lowering.h"

namespace ladder {

Statement LinearLowering::declare_table(std::int64_t words) {
  const auto table = buffer("code_table", Level::shared, Scalar::u32, words);
  if (relative()) {
    table_ = view(table, {kRelativeEntries, 2}, {2, 1});
    return {FillWords{table_, relative_operands(*problem_.weight.element).words}};
  }
  table_ = view(table, {table_entries(problem_.weight.bits), kLanes}, {kLanes, 1});
  return {FillTable{table_, problem_.weight.bits, decoding_.table}};
}

bool LinearLowering::zeros_by_product() const {
  return problem_.weight.stored_zero == Zero::original ||
         problem_.weight.stored_zero == Zero::rescale ||
         (problem_.weight.stored_zero == Zero::integer && takes_zero_product(problem_, route_));
}

CodeBytes LinearLowering::bytes_of_codes() const {
  return code_bytes(problem_, route_, instruction_.takes_unsigned());
}

Scalar LinearLowering::byte_scalar() const {
  if (float_bytes()) return operand_;
  if (scaled_bytes()) return Scalar::s8;
  return bytes_of_codes().has_sign ? Scalar::s8 : Scalar::u8;
}

bool LinearLowering::reads_ones() const {
  return decoding_.rounded && decoding_.kind == Decoding::Kind::integers &&
         (operand_ == Scalar::f16 || joins_whole_scales(problem_)) &&
         problem_.weight.stored_zero == Zero::none;
}

// Else the largest power of two that the multiply-add can give to (code - zero).
int LinearLowering::operand_exponent() const {
  if (reads_ones()) return 0;
  const int largest = problem_.activation() == Scalar::f16 ? 15 : 127;
  return largest + linear_exponent(problem_.activation()) - problem_.weight.shift;
}

void LinearLowering::declare_operands(Body& body, const Tiling& tiling) {
  const ImageFit& fit = tiling.fit;
  const Layout sums = tiling.sum_warps * fit.sums(tiling.tokens);
  Operands& o = operands_;
  o.a = reg("a", has_bytes(route_) ? byte_scalar() : operand_, tiling.a_warps * fit.a());
  if (tiling.b_in_registers) o.b = reg("b", operand_, tiling.b_warps * fit.b(tiling.tokens));
  o.zeros_layout = tiling.a_warps * fit.zeros();
  acc_ = reg("acc", instruction_.accumulator, sums);
  const bool apart = tiling.running || instruction_.accumulator != Scalar::f32;
  const bool one_sum = decoding_.scaled && instruction_.accumulator == Scalar::f32;
  o.total = apart && !one_sum ? reg("total", Scalar::f32, sums) : acc_;
  double zero[2] = {0, 0};  // a row of the operand that multiplies the activations once more
  if (relative()) {
    o.largest = reg("largest_scale", Scalar::e8m0, tiling.largest);
    const int exponent = relative_operands(*problem_.weight.element).exponent;
    o.scale_exponent[0] = o.scale_exponent[1] = -exponent;
  } else if (float_bytes()) {
    const int halves = operand_ == Scalar::e4m3fnuz ? 2 * kFnuzExponent : 0;  // of both operands
    o.scale_exponent[0] = o.scale_exponent[1] =
        halves + (problem_.weight.element != nullptr ? kByteBias - problem_.weight.element->bias
                                                     : problem_.weight.exponent - kWholeExponent);
  } else if (scaled_bytes()) {
    o.scale_exponent[0] = o.scale_exponent[1] = problem_.weight.exponent;
  } else if (has_bytes(route_)) {
    const CodeBytes bytes = bytes_of_codes();
    for (std::size_t parity = 0; parity < 2; ++parity) {
      o.scale_exponent[parity] =
          problem_.weight.exponent + problem_.weight.shift - bytes.plan.offset[parity];
      zero[parity] = bytes.zero[parity];
    }
  } else if (decoding_.kind != Decoding::Kind::integers) {
    o.scale_exponent[0] = o.scale_exponent[1] = -decoding_.exponent;
  } else if (route_ == Route::in_place) {
    const InPlace& codes = in_place(problem_.weight.bits, problem_.activation());
    for (int parity = 0; parity < 2; ++parity) {
      o.scale_exponent[parity] = problem_.weight.exponent - codes.exponent[parity];
      zero[parity] = -codes.base - std::ldexp(problem_.weight.zero, codes.exponent[parity]);
    }
  } else {
    const int exponent = decoding_.rounded ? 0 : operand_exponent();
    o.scale_exponent[0] = o.scale_exponent[1] = problem_.weight.exponent - exponent;
  }
  if (zeros_by_product()) {
    // Minus one in the unit of the sums: stored zero points multiply the sum of the activations.
    for (int parity = 0; parity < 2; ++parity) {
      zero[parity] = -std::ldexp(1.0, -o.scale_exponent[parity]);
    }
  }
  // Operands have their scales; or scales of e8m0 times the unit would be infinite, and NaN where a
  // group's sum is zero.
  const bool large = problem_.weight.scale == Scalar::e8m0 &&
                     std::max(o.scale_exponent[0], o.scale_exponent[1]) > 0;
  for (int parity = 0; (decoding_.scaled || large) && parity < 2; ++parity) {
    o.last_exponent[parity] = std::exchange(o.scale_exponent[parity], 0);
  }
  if (zero[0] != zero[1] && !fit.mixes_parities()) {
    fail<Unsupported>(instruction_.name, " has no zero point in place");
  }
  if (has_bytes(route_) && zero[0] > kLargestByte) {
    o.zero_products = 2;
    for (double& each : zero) each /= 2;
  }
  if (zero[0] != 0) {
    o.zero_row = reg("zero", operand_, tiling.a_warps * fit.zero_row());
    o.zero_sum =
        reg("zero_sum", instruction_.accumulator, tiling.sum_warps * fit.zero_sum(tiling.tokens));
    emit(body, Fill{o.zero_row, {zero[0], zero[1]}});
  }
}

void LinearLowering::begin_sums(Body& body) {
  const Operands& o = operands_;
  if (decoding_.scaled) {
    emit(body, Fill{acc_, {0, 0}});
  } else if (o.total != acc_ && !o.open) {
    emit(body, Fill{o.total, {0, 0}});
  }
}

void LinearLowering::prepare_group(Body& body) {
  if (relative()) {
    const auto count = static_cast<int>(kRelativeColumns / problem_.group_size());
    emit(body, LargestScale{operands_.largest, scale_rows(), operands_.group, count});
  }
  if (problem_.weight.stored_zero != Zero::integer || zeros_by_product()) return;
  Operands& o = operands_;
  const bool bytes = has_bytes(route_);
  if (o.zeros < 0) {
    o.zeros = reg("zero_operand", bytes ? Scalar::u8 : problem_.activation(), o.zeros_layout);
  }
  emit(body, ZeroOperand{o.zeros, zero_rows(), o.group,
                         bytes ? bytes_of_codes().plan.offset[0] : operand_exponent()});
}

void LinearLowering::begin_group(Body& body) {
  const Operands& o = operands_;
  prepare_group(body);
  // Sums start from what the zero point adds where that is known, else it joins them at the end.
  if (o.zero_row >= 0 && !zeros_by_product() && o.zero_known) {
    emit(body, Spread{acc_, o.zero_sum});
  } else if (!decoding_.scaled && !o.begun) {
    const double first = o.biased ? kSumBias : 0;
    emit(body, Fill{acc_, {first, first}});
  }
  if (o.zero_in_steps()) emit(body, Fill{o.zero_sum, {0, 0}});
}

void LinearLowering::multiply_step(Body& body) {
  multiply_step(body, [this](RegisterId acc, RegisterId a) {
    return Statement{Mma{&instruction_, acc, a, operands_.b}};
  });
}

void LinearLowering::multiply_step(Body& body, const Product& product) {
  decode_step(body);
  multiply_decoded(body, product);
}

void LinearLowering::multiply_decoded(Body& body, const Product& product) {
  const Operands& o = operands_;
  body.push_back(product(acc_, o.a));
  if (o.zero_in_steps()) body.push_back(product(o.zero_sum, o.zero_row));
}

void LinearLowering::decode_step(Body& body) {
  const Operands& o = operands_;
  if (relative()) {
    emit(body, LookupRelative{o.a, words_, o.block, o.in_block, table_, scale_rows(),
                              o.group_of_step, o.largest});
    return;
  }
  if (has_bytes(route_)) {
    UnpackBytes codes{
        o.a, words_, o.block, o.in_block, problem_.weight.bits, problem_.weight.three};
    if (problem_.weight.element != nullptr) {
      codes.mantissa_bits = problem_.weight.element->mantissa_bits;
    } else if (float_bytes()) {
      codes.shift = problem_.weight.shift;
    }
    if (scaled_bytes()) {
      codes.zero = problem_.weight.zero;
      codes.scales = scale_rows();
      codes.group = o.group;
    } else if (subtracts_zero(problem_, route_)) {
      codes.zeros = o.zeros;
      codes.zero = problem_.weight.zero << bytes_of_codes().plan.offset[0] >> problem_.weight.shift;
    } else if (!float_bytes()) {
      codes.below_sign = bytes_of_codes().below_sign;
    }
    emit(body, std::move(codes));
    return;
  }
  switch (decoding_.kind) {
    case Decoding::Kind::integers: {
      const bool in_place = route_ == Route::in_place;
      const bool joins = decoding_.rounded && joins_whole_scales(problem_);
      emit(body, Unpack{o.a, words_, o.block, o.in_block, problem_.weight.bits, in_place,
                        in_place ? 0 : problem_.weight.zero, in_place ? 0 : operand_exponent(),
                        in_place ? 0 : problem_.weight.shift, o.zeros, problem_.weight.three,
                        reads_ones(), joins ? scale_rows() : -1, joins ? o.group : Affine(0)});
      if (joins) return;
      break;
    }
    case Decoding::Kind::fields: {
      const bool joins = decoding_.scaled && (!decoding_.rounded || joins_powers(problem_));
      emit(body, UnpackFloat{o.a, words_, o.block, o.in_block, decoding_.fields,
                             joins ? scale_rows() : -1, o.group});
      if (joins) return;
      break;
    }
    case Decoding::Kind::table:
      emit(body, Lookup{o.a, words_, o.block, o.in_block, problem_.weight.bits, table_});
      break;
  }
  if (!decoding_.rounded) return;
  const bool integers = decoding_.kind == Decoding::Kind::integers;
  emit(body, ScaleOperand{o.a, scale_rows(), o.group, integers ? -operand_exponent() : 0});
}

void LinearLowering::end_group(Body& body) {
  const Operands& o = operands_;
  for (int i = 0; o.zero_in_steps() && !zeros_by_product() && i < o.zero_products; ++i) {
    emit(body, Add{acc_, o.zero_sum});
  }
  if (problem_.weight.stored_zero != Zero::rescale) subtract_zeros(body);
  if (!decoding_.scaled) {
    emit(body, Scale{o.total,
                     acc_,
                     relative() ? o.largest : scale_rows(),
                     relative() ? Affine(0) : o.group,
                     {o.scale_exponent[0], o.scale_exponent[1]},
                     o.total != acc_ && !o.open,
                     o.biased});
  }
  if (problem_.weight.stored_zero == Zero::rescale) subtract_zeros(body);
}

// The sum of the activations is in the unit of the accumulator, whose scale brings it to 1; after
// scaling, zero points meet it in its own.
void LinearLowering::subtract_zeros(Body& body) {
  if (!zeros_by_product()) return;
  const Operands& o = operands_;
  const bool scaled = problem_.weight.stored_zero == Zero::rescale;
  int less = 0;
  if (has_bytes(route_)) {
    // With a flipped sign codes are less the middle of all.
    const CodeBytes bytes = bytes_of_codes();
    if (bytes.has_sign && !bytes.below_sign) less = 1 << (problem_.weight.bits - 1);
  }
  emit(body, Offset{scaled ? o.total : acc_,
                    zero_rows(),
                    o.zero_sum,
                    o.group,
                    {scaled ? o.scale_exponent[0] : 0, scaled ? o.scale_exponent[1] : 0},
                    less});
}

void LinearLowering::end_sums(Body& body) {
  const Operands& o = operands_;
  if (o.open) end_group(body);
  const bool converts = decoding_.scaled && o.total != acc_;  // one sum of integers
  const RegisterId from = converts ? acc_ : o.total;
  acc_ = o.total;
  if (digits()) emit(body, JoinDigits{acc_, unit_, problem_.activation()});
  if (!converts && o.last_exponent[0] == 0 && o.last_exponent[1] == 0) return;
  emit(body, Scale{acc_, from, -1, 0, {o.last_exponent[0], o.last_exponent[1]}, false});
}

RegisterId LinearLowering::after_sums(Body& body, const Affine& first) {
  const Layout layout = program_.registers[sum_].layout;
  RegisterId out = sum_;
  const auto take = Match{
      [&](const SecondScale&) {
        if (problem_.weight.type.scale2_of_rows) {
          const auto of_rows = reg("scale_of_rows", Scalar::f32, layout);
          const auto all = view(scale2_, {1, problem_.n, layout.shape[2]}, {0, 1, 0});
          emit(body, Load{of_rows, all, {0, first, 0}});
          emit(body, Multiply{sum_, of_rows});
          return;
        }
        const auto scale2 = reg("scale_of_all", Scalar::f32, replicated(program_.threads, 3));
        emit(body, Load{scale2, view(scale2_, {1, 1, 1}, {0, 0, 0}), {0, 0, 0}});
        emit(body, Multiply{sum_, scale2});
      },
      [&](const ScaleOfToken&) {
        const auto of_tokens = reg("scale_of_tokens", Scalar::f32, layout);
        if (token_scales_ >= 0) {
          emit(body, Load{of_tokens, token_scales_, {0, 0, sums_.in_tile}});
        } else {
          const auto scales = view(x_scales_, {1, layout.shape[1], kTokens}, {0, 0, 1});
          emit(body, Load{of_tokens, scales, {0, 0, sums_.first_token}});
        }
        emit(body, Multiply{sum_, of_tokens});
      },
      [&](const Bias&) {
        const auto bias = reg("bias_of_rows", problem_.formats.bias, layout);
        emit(body,
             Load{bias, view(bias_, {1, problem_.n, layout.shape[2]}, {0, 1, 0}), {0, first, 0}});
        emit(body, Add{sum_, bias});
      },
      [&](const GateProduct& gate) {
        const Layout eight = spatial({1, kGateRows, 1}), pair = local({1, 2, 1});
        const auto outer = layout / (pair * eight);
        LADDER_CHECK(outer, "gate and up in other threads: ", to_string(layout));
        out = reg("gated", Scalar::f32, *outer * eight);
        emit(body, Gate{out, sum_, gate.gating});
      },
      [&](const ActivationFunction& f) {
        emit(body, Activate{sum_, f.what});
      },
      [&](const Residual&) {
        const auto columns = problem_.columns_of_y();
        const auto residual = reg("residual_of_rows", problem_.formats.y, layout);
        // Else the assembler loads each just before it is added, and waits for it.
        emit(body, Load{residual,
                        view(residual_, {1, columns, kTokens}, {0, 1, columns}),
                        {0, first, sums_.first_token},
                        Cache::now});
        emit(body, Add{sum_, residual});
      },
      [&](const Quantise&) {
        const auto scale = reg("scale_of_y", Scalar::f32, replicated(program_.threads, 3));
        emit(body, Load{scale, view(y_scale_, {1, 1, 1}, {0, 0, 0}), {0, 0, 0}});
        const auto numbers =
            std::exchange(out, reg("codes", problem_.formats.y, program_.registers[out].layout));
        emit(body, ToCodes{out, numbers, scale});
      }};
  for (const EpilogueStep& step : problem_.epilogue) std::visit(take, step);
  return out;
}

}  // namespace ladder
