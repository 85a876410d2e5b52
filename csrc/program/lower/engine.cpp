// SPDX-License-Identifier: Apache-2.0
//
// Activations by the copy engine: rows of the tokens there are, each started by one lane, beside
// the queue in which loads of weights wait. Threads that copy them stand in that queue: behind a
// block's weights activations of 8 KB arrive 2 us late (docs/performance.md).
#include "program/lower/lowering.h"

namespace ladder {

void Lowering::load_by_engine(Body& body) {
  const bool shared = schedule_.sharers > 1;
  const auto staged = static_cast<SignalId>(program_.signals.size());
  program_.signals.push_back({"staged", 1, 1});
  emit(body, SignalInit{staged});
  if (shared) emit(body, ClusterBarrier{true});
  // The rows of one block are soon asked for; for those of many tokens weights had better wait.
  const bool weights_first = schedule_.dependent_launch || !shared;
  if (weights_first) load_weights(body);
  if (schedule_.dependent_launch) emit(body, DependentWait{});
  if (!shared) emit(body, Barrier{});
  copy_rows(body, staged);
  if (!weights_first) load_weights(body);
  emit(body, Await{staged, 0, 0});
}

void Lowering::copy_rows(Body& body, SignalId staged) {
  declare_activations();
  const auto to = view(x_tile_, {schedule_.tokens, schedule_.block_columns()}, {x_pitch_, 1});
  const auto first = Affine::of(kSplit, schedule_.block_columns());
  emit(body, CopyRows{to, x_rows_, first, staged, 0, schedule_.sharers > 1});
}

}  // namespace ladder
