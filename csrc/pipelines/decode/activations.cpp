// SPDX-License-Identifier: Apache-2.0
// Activations in shared memory: those of the block at once, or in rounds, with room for P of them:
//
//     at first:    the copies of rounds 0 .. P - 2 are on their way
//     each round:  wait for its copies; barrier; start those of P - 1 rounds later; multiply
//
// The barrier says both that the copies of every thread are there and that nobody still reads the
// round before, whose place the new copies take. So a round costs one barrier, and waits for what
// was asked for P - 1 rounds ago.
//
// With a slack of S rounds there is no barrier: a warp awaits the signal that a round's copies are
// there, and tells another when it has read it, which those who copy into its place await S rounds
// later. So a warp that memory keeps waiting does not stop the others at once.
#include "pipelines/decode/lowering.h"

namespace ladder {

// Rows of absent tokens are zero where threads copy; the engine leaves them.
void DecodeLowering::declare_activations() {
  const auto parts = staged_parts(schedule_), columns = staged_columns(schedule_);
  x_tile_ = buffer("x_tile", Level::shared, operand_, shared_.activations);
  x_rows_ = view(x_, {kTokens, problem_.k}, {problem_.k, 1});
  if (problem_.permuted_columns) x_order_ = view(gather_, {problem_.k}, {1});
  x_warp_ = view(x_tile_,
                 {schedule_.warps_k, schedule_.sharers > 0 ? kTokens : parts * schedule_.tokens,
                  columns - (schedule_.warps_k - 1) * warp_columns()},
                 {warp_columns(), shared_.x_pitch, 1});
}

Affine DecodeLowering::x_part(const Affine& round) const {
  return remainder(round, schedule_.x_rounds);
}

Affine DecodeLowering::staged_row(const Affine& round) const {
  return x_in_rounds() ? times(x_part(round), schedule_.tokens) : Affine(0);
}

Affine DecodeLowering::staged_column(const Affine& round) const {
  return x_in_rounds() ? Affine(0) : times(round, schedule_.round_columns());
}

void DecodeLowering::copy_activations(Body& body, const Affine& round, const Affine& guard,
                                      std::int64_t below) {
  const auto to =
      view(x_tile_, {schedule_.tokens, staged_columns(schedule_)}, {shared_.x_pitch, 1});
  program_.views[to].offset = times(staged_row(round), shared_.x_pitch);
  const std::vector<Affine> first = {
      0, Affine::of(kSplit, schedule_.block_columns()) + times(round, schedule_.round_columns())};
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
  if (schedule_.x_slack > 0) {
    x_full_ = signal(body, {"x_full", schedule_.x_rounds, program_.threads});
    if (x_reused()) x_empty_ = signal(body, {"x_empty", schedule_.x_rounds, program_.threads});
  }
  for (int round = 0; round < (x_in_rounds() ? x_ahead() : 1); ++round) {
    copy_activations(body, round);
    if (round == 0 && schedule_.x_slack > 0) emit(body, Barrier{});  // the signals are there
    close_copies(body, round);
  }
}

void DecodeLowering::close_copies(Body& body, const Affine& round) {
  if (schedule_.x_slack > 0) {
    emit(body, Arrive{x_full_, x_part(round), whole_pieces() ? Arrival::copies : Arrival::threads});
  } else if (whole_pieces()) {
    emit(body, Commit{});
  }
}

void DecodeLowering::await_activations(Body& body, int pending) {
  if (whole_pieces()) emit(body, Wait{pending});
}

void DecodeLowering::next_activations(Body& body, const Affine& round, const Affine& sweep) {
  const bool first = round.terms.empty() && round.constant == 0;
  if (engine_by_rounds(schedule_) && !first) emit(body, Await{staged_, round, 0});
  if (!x_in_rounds()) return;
  if (schedule_.x_slack > 0) return next_signalled(body, round);
  if (!staged()) await_activations(body, schedule_.x_rounds - 2);
  const auto following = round + Affine(x_ahead());
  const bool last =
      following.terms.empty() && following.constant >= schedule_.rounds && schedule_.sweeps == 1;
  // Groups count rounds, so that of a round past the end is empty.
  // What threads stored themselves the last barrier showed, and nothing more is overwritten.
  if (last && !whole_pieces() && following.constant > schedule_.rounds) return;
  if (last && !staged()) close_copies(body, following);
  emit(body, Barrier{});
  if (last) return;
  if (!following.terms.empty()) {
    copy_activations(body, following, following, schedule_.rounds);
  } else if (following.constant < schedule_.rounds) {
    copy_activations(body, following);
  } else {
    copy_activations(body, following.constant - schedule_.rounds, sweep, schedule_.sweeps - 1);
  }
  if (!staged()) close_copies(body, following);
}

// The phase of a round is its number over P. Before a part was ever used, the phase before its
// first has ended, as its parity says.
void DecodeLowering::next_signalled(Body& body, const Affine& round) {
  const auto parts = schedule_.x_rounds;
  const auto phase = [&](const Affine& of) { return remainder(divided(of, parts), 2); };
  const auto following = round + Affine(x_ahead());
  if (!following.terms.empty() || following.constant < schedule_.rounds) {
    if (x_reused()) {
      emit(body, Await{x_empty_, x_part(following), phase(following + Affine(parts))});
    }
    if (following.terms.empty()) {
      copy_activations(body, following);
    } else {
      copy_activations(body, following, following, schedule_.rounds);
    }
    close_copies(body, following);
  }
  emit(body, Await{x_full_, x_part(round), phase(round)});
}

void DecodeLowering::release_activations(Body& body, const Affine& round) {
  if (schedule_.x_slack == 0 || !x_reused()) return;
  const bool awaited =
      !round.terms.empty() || round.constant + schedule_.x_rounds < schedule_.rounds;
  // Of every thread: compute-sanitizer follows only a thread's own arrivals, and one for each warp
  // is hardly faster (docs/dev/notebook_gpu.md).
  if (awaited) emit(body, Arrive{x_empty_, x_part(round)});
}

}  // namespace ladder
