// SPDX-License-Identifier: Apache-2.0
//
// Activations by bulk copy: rows of the tokens there are, each started by one lane, beside the
// queue in which loads of weights wait. Threads that copy them stand in that queue: behind a CTA's
// weights activations of 8 KB arrive 2 us late (docs/dev/notebook_gpu.md).
//
// By k-tiles, each has a signal of its own, so products begin with the first one's activations
// while the others are on their way: what a device reads of 16 tokens takes as long as a small
// layer's weights.
#include "pipelines/decode/lowering.h"

namespace ladder {

void DecodeLowering::load_by_bulk_copy(Body& body, const activations::BulkCopy& copy) {
  const bool multicast = copy.multicast > 1;
  const int k_tiles = schedule_.k_tiles();
  copied_ = signal(body, {"staged", copy.by_k_tiles ? k_tiles : 1, 1});
  if (multicast) emit(body, ClusterBarrier{true});
  // The rows of one CTA are soon asked for; for those of many tokens weights had better wait.
  const bool weights_first = schedule_.dependent_launch || !multicast;
  if (weights_first) load_weights(body);
  if (schedule_.dependent_launch) await_preceding(body);
  if (!multicast) emit(body, Barrier{});
  declare_activations();
  // Only what the first k-tile needs goes before its weights.
  if (copy.by_k_tiles) {
    copy_k_tiles(body, 0, 1, multicast);
  } else {
    copy_rows(body, multicast);
  }
  if (!weights_first) load_weights(body);
  if (copy.by_k_tiles) copy_k_tiles(body, 1, k_tiles - 1, multicast);
  emit(body, Await{copied_, 0, 0});  // of all, or of the first k-tile
}

void DecodeLowering::copy_rows(Body& body, bool multicast) {
  const auto to = view(x_tile_, {schedule_.tokens, schedule_.cta_columns()}, {shared_.x_pitch, 1});
  const auto first = Affine::of(kSplit, schedule_.cta_columns());
  emit(body, CopyRows{to, x_rows_, first, copied_, 0, multicast});
}

void DecodeLowering::copy_k_tiles(Body& body, int first, int count, bool multicast) {
  const auto columns = schedule_.k_tile_columns();
  for (std::int64_t k_tile = first; k_tile < first + count; ++k_tile) {
    const auto to = view(x_tile_, {schedule_.tokens, columns}, {shared_.x_pitch, 1});
    program_.views[to].offset = k_tile * columns;
    const auto at = Affine::of(kSplit, schedule_.cta_columns()) + Affine(k_tile * columns);
    emit(body, CopyRows{to, x_rows_, at, copied_, k_tile, multicast});
  }
}

}  // namespace ladder
