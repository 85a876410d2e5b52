// SPDX-License-Identifier: Apache-2.0
#include "program/lower/lowering.h"

namespace ladder {

void Lowering::declare_table(Body& body) {
  if (decoding_.kind != Decoding::Kind::table) return;
  const auto entries = table_entries(expr_.bits);
  const auto table = buffer("code_table", Level::shared, Scalar::u32, shared_.table);
  table_ = view(table, {entries, kLanes}, {kLanes, 1});
  // While the copies are on their way: the last statement waits for them.
  body.insert(body.end() - 1, Statement{FillTable{table_, expr_.bits, decoding_.table}});
}

bool Lowering::zeros_by_product() const {
  return expr_.stored_zero == Zero::original || expr_.stored_zero == Zero::rescale ||
         (expr_.stored_zero == Zero::integer && schedule_.route == Route::in_place);
}

// The largest power of two that the multiply-add can give to (code - zero).
int Lowering::operand_exponent() const {
  const int largest = expr_.activation == Scalar::f16 ? 15 : 127;
  return largest + linear_exponent(expr_.activation) - expr_.shift;
}

void Lowering::prepare_group(Body& body) {
  if (expr_.stored_zero != Zero::integer || zeros_by_product()) return;
  Operands& o = operands_;
  if (o.zeros < 0) o.zeros = reg("zero_operand", expr_.activation, warps() * zero_fragment());
  emit(body, ZeroOperand{o.zeros, zero_rows(), Affine::of(o.group), operand_exponent()});
}

void Lowering::decode_step(Body& body) {
  const Operands& o = operands_;
  switch (decoding_.kind) {
    case Decoding::Kind::integers: {
      if (digits()) {
        emit(body, UnpackBytes{o.a, words_, o.block, o.in_block, expr_.bits, expr_.three});
        break;
      }
      const bool in_place = schedule_.route == Route::in_place;
      emit(body, Unpack{o.a, words_, o.block, o.in_block, expr_.bits, in_place,
                        in_place ? 0 : expr_.zero, in_place ? 0 : operand_exponent(),
                        in_place ? 0 : expr_.shift, o.zeros, expr_.three});
      break;
    }
    case Decoding::Kind::fields:
      emit(body, UnpackFloat{o.a, words_, o.block, o.in_block, decoding_.fields,
                             decoding_.scaled ? scale_rows() : -1, Affine::of(o.group)});
      break;
    case Decoding::Kind::table:
      emit(body, Lookup{o.a, words_, o.block, o.in_block, expr_.bits, table_});
      break;
  }
}

// The sum of the activations is in the unit of the accumulator, whose scale brings it to 1; after
// scaling, zero points meet it in its own.
void Lowering::subtract_zeros(Body& body) {
  if (!zeros_by_product()) return;
  const Operands& o = operands_;
  const bool scaled = expr_.stored_zero == Zero::rescale;
  emit(body, Offset{scaled ? o.total : acc_,
                    zero_rows(),
                    o.zero_sum,
                    Affine::of(o.group),
                    {scaled ? o.scale_exponent[0] : 0, scaled ? o.scale_exponent[1] : 0}});
}

void Lowering::scale_and_bias(Body& body, const Affine& first) {
  const Layout layout = program_.registers[sum_].layout;
  if (expr_.scale2) {
    const auto scale2 = reg("scale_of_all", Scalar::f32, replicated(program_.threads, 3));
    emit(body, Load{scale2, view(scale2_, {1, 1, 1}, {0, 0, 0}), {0, 0, 0}});
    emit(body, Multiply{sum_, scale2});
  }
  if (expr_.bias) {
    const auto bias = reg("bias_of_rows", expr_.activation, layout);
    emit(body, Load{bias, view(bias_, {1, expr_.n, layout.shape[2]}, {0, 1, 0}), {0, first, 0}});
    emit(body, Add{sum_, bias});
  }
}

}  // namespace ladder
