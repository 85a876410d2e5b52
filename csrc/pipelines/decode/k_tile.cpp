// SPDX-License-Identifier: Apache-2.0
// The products of a k-tile: the sums of its columns in `acc_`, scaled.
#include "pipelines/decode/lowering.h"

namespace ladder {

void DecodeLowering::multiply_k_tile(Body& body, const Affine& k_tile, const AfterPart& after) {
  multiply_seconds(body);
  Body per_group;
  begin_group(per_group);
  for (int part = 0; part < kept_.parts; ++part) {
    Body per_step;
    words_ = words_by_part_[part];
    load_activations(per_step, k_tile, part);
    multiply_step(per_step);
    emit(per_group, For{step_, steps_, std::move(per_step)});
    if (after) after(per_group, part);
  }
  end_group(per_group);
  emit(body, For{group_, groups_, std::move(per_group)});
  release_activations(body, k_tile);
}

void DecodeLowering::load_activations(Body& body, const Affine& k_tile, int part) {
  const auto column = Affine::of(group_, steps_ * kept_.parts * step_columns()) +
                      Affine::of(step_, step_columns()) + Affine(part * steps_ * step_columns());
  emit(body, LoadMatrix{&instruction_,
                        operands_.b,
                        x_warp_,
                        {0, staged_row(k_tile), column + staged_column(k_tile)}});
}

}  // namespace ladder
