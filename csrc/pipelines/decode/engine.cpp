// SPDX-License-Identifier: Apache-2.0
//
// Activations by the copy engine: rows of the tokens there are, each started by one lane, beside
// the queue in which loads of weights wait. Threads that copy them stand in that queue: behind a
// block's weights activations of 8 KB arrive 2 us late (docs/dev/notebook_gpu.md).
//
// By rounds, each has a signal of its own, so products begin with the first one's activations
// while the others are on their way: what a device reads of 16 tokens takes as long as a small
// layer's weights.
#include "pipelines/decode/lowering.h"

namespace ladder {

void DecodeLowering::load_by_engine(Body& body) {
  const bool shared = schedule_.sharers > 1, by_rounds = engine_by_rounds(schedule_);
  staged_ = signal(body, {"staged", by_rounds ? schedule_.rounds : 1, 1});
  if (shared) emit(body, ClusterBarrier{true});
  // The rows of one block are soon asked for; for those of many tokens weights had better wait.
  const bool weights_first = schedule_.dependent_launch || !shared;
  if (weights_first) load_weights(body);
  if (schedule_.dependent_launch) await_preceding(body);
  if (!shared) emit(body, Barrier{});
  declare_activations();
  // Only what the first round needs goes before its weights.
  const int before = by_rounds ? 1 : schedule_.rounds;
  if (by_rounds) {
    copy_rounds(body, 0, before);
  } else {
    copy_rows(body);
  }
  if (!weights_first) load_weights(body);
  if (by_rounds) copy_rounds(body, before, schedule_.rounds - before);
  emit(body, Await{staged_, 0, 0});  // of all, or of the first round
}

void DecodeLowering::copy_rows(Body& body) {
  const auto to =
      view(x_tile_, {schedule_.tokens, schedule_.block_columns()}, {shared_.x_pitch, 1});
  const auto first = Affine::of(kSplit, schedule_.block_columns());
  emit(body, CopyRows{to, x_rows_, first, staged_, 0, schedule_.sharers > 1});
}

void DecodeLowering::copy_rounds(Body& body, int first, int count) {
  const auto columns = schedule_.round_columns();
  for (std::int64_t round = first; round < first + count; ++round) {
    const auto to = view(x_tile_, {schedule_.tokens, columns}, {shared_.x_pitch, 1});
    program_.views[to].offset = round * columns;
    const auto at = Affine::of(kSplit, schedule_.block_columns()) + Affine(round * columns);
    emit(body, CopyRows{to, x_rows_, at, staged_, round, schedule_.sharers > 1});
  }
}

}  // namespace ladder
