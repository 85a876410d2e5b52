// SPDX-License-Identifier: Apache-2.0
// Products by parts of the tokens: while those of a part run, the sums of the part before are added
// up. Operands are those of a whole k-tile, decoded once for all parts.
#include "pipelines/tiles/lowering.h"

namespace ladder {

void TileLowering::declare_parts() {
  sums_in_turn_ = {acc_};
  totals_ = {operands_.total};
  while (sums_in_turn_.size() < kPartsInTurn) sums_in_turn_.push_back(another(acc_));
  while (static_cast<int>(totals_.size()) < s_.token_parts) {
    totals_.push_back(another(operands_.total));
  }
  sums_.bring = [this](Body& to, ViewId view) { bring_parts(to, view); };
}

void TileLowering::use_part(int part) {
  acc_ = sums_in_turn_[part % kPartsInTurn];
  operands_.total = totals_[part];
}

void TileLowering::k_tile_in_parts(Body& body, const Affine& k_tile) {
  decode_k_tile(body, k_tile);
  for (int part = 0; part < s_.token_parts; ++part) {
    multiply_part(body, k_tile, part);
    if (part == 0) continue;
    await_part(body, part - 1, operand_stages(s_, problem_));
    end_group(body);
  }
  await_part(body, s_.token_parts - 1, 0);
  if (s_.producers) release(body, k_tile);
  end_group(body);
}

void TileLowering::decode_k_tile(Body& body, const Affine& k_tile) {
  operands_.group = 0;  // of the scales that are loaded
  prepare_group(body);
  const auto steps = kBlock / instruction_.k;
  for (std::int64_t block = 0; block < blocks(); ++block) {
    load_words(body, k_tile, block);
    for (std::int64_t step = 0; step < steps; ++step) {
      operands_.a = stages_of_a_[block * steps + step];
      operands_.in_block = step;
      if (relative()) operands_.group_of_step = group_of_step(block, step, 0, 1);
      decode_step(body);
    }
  }
}

void TileLowering::multiply_part(Body& body, const Affine& k_tile, int part) {
  use_part(part);
  const auto steps = kBlock / instruction_.k, token = part * s_.part_tokens();
  for (std::int64_t i = 0; i < operand_stages(s_, problem_); ++i) {
    emit(body, shared_product(acc_, stages_of_a_[i], k_tile, token, i / steps,
                              i % steps * instruction_.k, i == 0));
  }
}

void TileLowering::await_part(Body& body, int part, int pending) {
  use_part(part);
  emit(body, MmaWait{pending, {acc_}});
}

void TileLowering::bring_parts(Body& body, ViewId to) {
  for (int part = 0; part < s_.token_parts; ++part) {
    use_part(part);
    end_sums(body);
    emit(body, Store{acc_, to, {0, 0, part * s_.part_tokens()}});
  }
}

}  // namespace ladder
