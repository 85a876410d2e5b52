// SPDX-License-Identifier: Apache-2.0
//
// Waves that alternate. A k-step has two phases, each with a barrier behind it, and the second half
// of the waves is a phase behind the first:
//
//     first half:   read, decode | multiply     | read, decode | multiply     | ...
//     second half:               | read, decode | multiply     | read, decode | multiply ...
//
// One stage of shared memory is enough, and no phase is there for it alone. A k-tile's columns come
// in two parts: the first is written in the last step of the k-tile before, when all have read what
// was there, and the second in the last step that reads the first. In either case the second half
// of the waves has written it a barrier before the first half reads it.
#include "pipelines/waves/lowering.h"

namespace ladder {

void WaveLowering::alternate(Body& body) {
  load_activations(body, 0, 1);
  emit(body, Barrier{});  // the first columns are there
  Alternate halves;
  emit(halves.body, Barrier{Half::second});
  Body each;
  phases(each, Affine::of(k_tile_), true);
  emit(halves.body, For{k_tile_, s_.k_tiles - 1, std::move(each), 1});
  phases(halves.body, s_.k_tiles - 1, false);
  emit(halves.body, Barrier{Half::first});
  emit(body, std::move(halves));
}

void WaveLowering::phases(Body& body, const Affine& k_tile, bool more) {
  const auto steps = groups_ * steps_.count;
  const auto group = operands_.group, block = operands_.block, in_block = operands_.in_block;
  multiply_seconds(body);
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto of_group = i / steps_.count, step = i % steps_.count;
    const auto here = [&](const Affine& affine) {
      return fixed(fixed(affine, steps_.group, of_group), steps_.step, step);
    };
    operands_.group = here(group), operands_.block = here(block);
    operands_.in_block = here(in_block);
    move_ahead(body, k_tile, i, more);
    if (step == 0 && !whole_row()) begin_group(body);
    load_step(body, k_tile, of_group, step);
    decode_step(body);
    emit(body, Barrier{});
    emit(body, Priority{true});
    multiply_decoded(body, [this](RegisterId acc, RegisterId a) {
      return Statement{Mma{&instruction_, acc, a, operands_.b}};
    });
    emit(body, Priority{false});
    // After the last products nobody waits: the halves meet once more, without one of them.
    if (more || i + 1 < steps) emit(body, Barrier{});
    if (step + 1 == steps_.count && !whole_row()) end_group(body);
  }
  operands_.group = group, operands_.block = block, operands_.in_block = in_block;
  if (more) take_next(body);
}

// The registers of one part of x are free before the next is asked for, and words of the first
// steps before the next ones come. Each has half of a k-tile's time on its way.
void WaveLowering::move_ahead(Body& body, const Affine& k_tile, std::int64_t step, bool more) {
  const Affine following = k_tile + Affine(1);
  const auto steps = groups_ * steps_.count, middle = steps / 2;
  if (step == middle - 1) store_activations(body, k_tile, 1);
  if (!more) return;
  if (step == middle - 1) load_activations(body, following, 0);
  if (step == middle) {
    load_words(body, following, next_words_);
    if (!whole_row()) load_scales(body, following, true);
  }
  if (step == steps - 1) {
    store_activations(body, following, 0);
    load_activations(body, following, 1);
  }
}

}  // namespace ladder
