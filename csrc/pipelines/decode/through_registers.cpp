// SPDX-License-Identifier: Apache-2.0
#include "pipelines/decode/through_registers.h"

namespace ladder {

void ThroughRegisters::main_loop(Body& body) {
  const int k_tiles = schedule_.k_tiles();
  if (k_tiles > 1) {
    const auto number = variable("k_tile", k_tiles - 1);
    const auto k_tile = Affine::of(number), following = k_tile + Affine(1);
    Body each;
    load_next(each, following);
    next_activations(each, k_tile);
    multiply_k_tile(each, k_tile);
    take_next(each);
    emit(body, For{number, k_tiles - 1, std::move(each), 2});
    next_activations(body, k_tiles - 1);
  }
  multiply_k_tile(body, k_tiles - 1);
}

void ThroughRegisters::load_next(Body& body, const Affine& k_tile) {
  next_words_ = reg("next_words", Scalar::u32, word_layout());
  for (PerGroup& part : per_group_) {
    part.next = reg("next_" + part.name, part.scalar, Layout(part.layout));
  }
  emit(body, Load{next_words_, images_.front(), word_origin(k_tile), Cache::once});
  for (const PerGroup& part : per_group_) {
    emit(body, Load{part.next, part.table, group_origin(part, k_tile)});
  }
}

void ThroughRegisters::take_next(Body& body) {
  emit(body, Reinterpret{words_, next_words_});
  for (const PerGroup& part : per_group_) {
    emit(body, Reinterpret{part.loaded, part.next});
    emit(body, Reinterpret{part.rows, part.loaded});
  }
}

}  // namespace ladder
