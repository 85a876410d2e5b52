// SPDX-License-Identifier: Apache-2.0
// Products in tensor memory: operands of a block of the image at a time, in two places in turn.
#include "pipelines/tiles/lowering.h"

namespace ladder {

// Columns of 32 bits have two operands, or one sum.
void TileLowering::declare_tensors() {
  const std::int64_t products = s_.threads() / warpgroup_->lanes();
  tensor_sums_ = static_cast<TensorId>(program_.tensors.size());
  program_.tensors.push_back({"sums_of_all", 1, products, s_.tokens});
  tensor_a_ = static_cast<TensorId>(program_.tensors.size());
  program_.tensors.push_back({"operands", kOperandPlaces, products, kBlock / 2});
  sums_.bring = [this](Body& to, ViewId view) { bring_sums(to, view); };
}

void TileLowering::tensor_tile(Body& body, const Affine& k_tile) {
  for (std::int64_t block = 0; block < blocks(); ++block) {
    tensor_block(body, k_tile, block);
  }
}

// Products end in their order. When the second place is free again, all of the k-tile before have
// ended, and nothing reads its stage.
void TileLowering::tensor_block(Body& body, const Affine& k_tile, std::int64_t block) {
  const Affine place = block;
  const auto steps = kBlock / instruction_.k;
  // Before its first use, the phase before the first has ended, as its parity says.
  emit(body, Await{freed_, place, remainder(k_tile + Affine(1), 2)});
  emit(body, TensorFence{true});
  if (block == kOperandPlaces - 1) release(body, k_tile);
  load_words(body, k_tile, block);
  const auto step = variable("step", steps);
  operands_.in_block = Affine::of(step);
  operands_.group = decoding_.scaled ? group_of_step(block, Affine::of(step), 0, 1) : Affine(0);
  Body per_step;
  if (decoding_.scaled) prepare_group(per_step);
  decode_step(per_step);
  const auto per_column = 32 / warpgroup_->operand_bits();
  const auto column = Affine::of(step, instruction_.k / per_column);
  emit(per_step, TensorStore{warpgroup_, operands_.a, tensor_a_, place, column});
  emit(body, For{step, steps, std::move(per_step)});
  emit(body, TensorWait{});
  emit(body, TensorFence{false});
  emit(body, Barrier{});
  emit(body, TensorFence{true});
  const auto product = variable("product", steps);
  const auto number = times(k_tile, blocks() * steps) + Affine(block * steps) + Affine::of(product);
  Body per_product;
  emit(per_product,
       TensorMma{warpgroup_,
                 tensor_sums_,
                 tensor_a_,
                 place,
                 Affine::of(product, instruction_.k / per_column),
                 x_ring_,
                 {stage_of(k_tile), 0, Affine(block), Affine::of(product, instruction_.k)},
                 number});
  emit(body, For{product, steps, std::move(per_product)});
  emit(body, TensorCommit{freed_, place});
}

void TileLowering::await_tensors(Body& body, const Affine& k_tile) {
  emit(body, Await{freed_, kOperandPlaces - 1, remainder(k_tile + Affine(1), 2)});
  emit(body, TensorFence{true});
}

void TileLowering::bring_sums(Body& body, ViewId to) {
  const auto tokens = program_.registers[acc_].layout.shape[2], loads = s_.tokens / tokens;
  const auto slice = variable("slice", loads);
  const auto first = Affine::of(slice, tokens);
  Body each;
  emit(each, TensorLoad{warpgroup_, acc_, tensor_sums_, first});
  end_sums(each);
  emit(each, Store{acc_, to, {0, 0, first}});
  emit(body, For{slice, loads, std::move(each), 1});
}

}  // namespace ladder
