// SPDX-License-Identifier: Apache-2.0
// Activations that threads copy to shared memory: those of all k-tiles at once, or in P stages:
//
//     at first:     the copies of k-tiles 0 .. P - 2 are on their way
//     each k-tile:  wait for its copies; barrier; start those of P - 1 k-tiles later; multiply
//
// The barrier says both that the copies of every thread are there and that nobody still reads the
// k-tile before, whose stage the new copies take. So a k-tile costs one barrier, and waits for what
// was asked for P - 1 k-tiles ago.
//
// With a consumer lag of L k-tiles there is no barrier: a warp awaits the signal that a k-tile's
// copies are there, and tells another when it has read it, which those who copy into its stage
// await L k-tiles later. So a warp that memory keeps waiting does not stop the others at once.
#include "pipelines/decode/lowering.h"

namespace ladder {

// Rows of absent tokens are zero where threads copy; the copy engine leaves them.
void DecodeLowering::declare_activations() {
  const auto parts = staged_parts(schedule_), columns = staged_columns(schedule_);
  x_tile_ = buffer("x_tile", Level::shared, operand_, shared_.activations);
  x_rows_ = view(x_, {kTokens, problem_.k}, {problem_.k, 1});
  if (problem_.permuted_columns) x_order_ = view(gather_, {problem_.k}, {1});
  x_warp_ = view(
      x_tile_,
      {schedule_.warps_k, schedule_.bulk_copy() != nullptr ? kTokens : parts * schedule_.tokens,
       columns - (schedule_.warps_k - 1) * warp_columns()},
      {warp_columns(), shared_.x_pitch, 1});
}

Affine DecodeLowering::stage_of(const Affine& k_tile) const {
  return remainder(k_tile, schedule_.activation_stages());
}

Affine DecodeLowering::staged_row(const Affine& k_tile) const {
  return in_stages() ? times(stage_of(k_tile), schedule_.tokens) : Affine(0);
}

Affine DecodeLowering::staged_column(const Affine& k_tile) const {
  return in_stages() ? Affine(0) : times(k_tile, schedule_.k_tile_columns());
}

int DecodeLowering::k_tiles_ahead() const {
  const auto* signalled = schedule_.signalled();
  return schedule_.activation_stages() - 1 - (signalled != nullptr ? signalled->consumer_lag : 0);
}

void DecodeLowering::copy_activations(Body& body, const Affine& k_tile, const Affine& guard,
                                      std::int64_t below) {
  const auto to =
      view(x_tile_, {schedule_.tokens, staged_columns(schedule_)}, {shared_.x_pitch, 1});
  program_.views[to].offset = times(staged_row(k_tile), shared_.x_pitch);
  const std::vector<Affine> first = {
      0, Affine::of(kSplit, schedule_.cta_columns()) + times(k_tile, schedule_.k_tile_columns())};
  if (digits()) {
    unit_ = reg("x_unit", Scalar::f32, local({1}) * replicated(program_.threads, 1));
    emit(body, SplitDigits{to, x_rows_, first, unit_, x_order_});
  } else if (whole_pieces()) {
    emit(body, CopyAsync{to, x_rows_, first, guard, below});
  } else {
    emit(body, CopyElements{to, x_rows_, first, x_order_, guard, below});
  }
}

void DecodeLowering::first_activations(Body& body) {
  declare_activations();
  const auto* signalled = schedule_.signalled();
  if (signalled != nullptr) {
    full_ = signal(body, {"x_full", signalled->stages, program_.threads});
    if (reuses_stages(schedule_)) {
      empty_ = signal(body, {"x_empty", signalled->stages, program_.threads});
    }
  }
  for (int k_tile = 0; k_tile < (in_stages() ? k_tiles_ahead() : 1); ++k_tile) {
    copy_activations(body, k_tile);
    if (k_tile == 0 && signalled != nullptr) emit(body, Barrier{});  // the signals are there
    close_copies(body, k_tile);
  }
}

void DecodeLowering::close_copies(Body& body, const Affine& k_tile) {
  if (schedule_.signalled() != nullptr) {
    emit(body,
         Arrive{full_, stage_of(k_tile), whole_pieces() ? Arrival::copies : Arrival::threads});
  } else if (whole_pieces()) {
    emit(body, Commit{});
  }
}

void DecodeLowering::await_activations(Body& body, int pending) {
  if (whole_pieces()) emit(body, Wait{pending});
}

void DecodeLowering::next_activations(Body& body, const Affine& k_tile, const Affine& tile) {
  const bool first = k_tile.terms.empty() && k_tile.constant == 0;
  std::visit(Match{[](const activations::AtOnce&) {},
                   [&](const activations::Staged&) { next_staged(body, k_tile, tile); },
                   [&](const activations::Signalled&) { next_signalled(body, k_tile); },
                   [&](const activations::BulkCopy& copy) {
                     if (copy.by_k_tiles && !first) emit(body, Await{copied_, k_tile, 0});
                   }},
             schedule_.activations);
}

void DecodeLowering::next_staged(Body& body, const Affine& k_tile, const Affine& tile) {
  const int k_tiles = schedule_.k_tiles(), tiles = schedule_.tiles_per_cta();
  // Else copies are in the groups of the ring, which waits for them.
  const bool own_groups = schedule_.ring() == nullptr;
  if (own_groups) await_activations(body, schedule_.activation_stages() - 2);
  const auto following = k_tile + Affine(k_tiles_ahead());
  const bool last = following.terms.empty() && following.constant >= k_tiles && tiles == 1;
  // Groups count k-tiles, so that of a k-tile past the end is empty.
  // What threads stored themselves the last barrier showed, and nothing more is overwritten.
  if (last && !whole_pieces() && following.constant > k_tiles) return;
  if (last && own_groups) close_copies(body, following);
  emit(body, Barrier{});
  if (last) return;
  if (!following.terms.empty()) {
    copy_activations(body, following, following, k_tiles);
  } else if (following.constant < k_tiles) {
    copy_activations(body, following);
  } else {
    copy_activations(body, following.constant - k_tiles, tile, tiles - 1);
  }
  if (own_groups) close_copies(body, following);
}

// The phase of a k-tile is its number over P. Before a stage was ever used, the phase before its
// first has ended, as its parity says.
void DecodeLowering::next_signalled(Body& body, const Affine& k_tile) {
  const int stages = schedule_.activation_stages(), k_tiles = schedule_.k_tiles();
  const auto phase = [&](const Affine& of) { return remainder(divided(of, stages), 2); };
  const auto following = k_tile + Affine(k_tiles_ahead());
  if (!following.terms.empty() || following.constant < k_tiles) {
    if (reuses_stages(schedule_)) {
      emit(body, Await{empty_, stage_of(following), phase(following + Affine(stages))});
    }
    if (following.terms.empty()) {
      copy_activations(body, following);
    } else {
      copy_activations(body, following, following, k_tiles);
    }
    close_copies(body, following);
  }
  emit(body, Await{full_, stage_of(k_tile), phase(k_tile)});
}

void DecodeLowering::release_activations(Body& body, const Affine& k_tile) {
  const auto* signalled = schedule_.signalled();
  if (signalled == nullptr || !reuses_stages(schedule_)) return;
  const bool awaited =
      !k_tile.terms.empty() || k_tile.constant + signalled->stages < schedule_.k_tiles();
  // Of every thread: compute-sanitizer follows only a thread's own arrivals, and one for each warp
  // is hardly faster (docs/dev/notebook_gpu.md).
  if (awaited) emit(body, Arrive{empty_, stage_of(k_tile)});
}

}  // namespace ladder
