// SPDX-License-Identifier: Apache-2.0
//
// Writes the program of a decode kernel. A warp has 16 to 64 rows; what it does with its columns
// is one of four shapes:
//
//     one round        all its words to registers, then multiply
//     register rounds  the next round's words on their way to registers while this one's multiply
//     ring rounds      each lane copies what it will use to shared memory, `stages` rounds ahead
//     deep rounds      `depth` rounds in registers, each loaded anew once it was multiplied
//
// of which the last may go over several tiles of rows, one sweep after the other,
// after which the sums of the warps, and of the blocks that share rows, are added up. Internal to
// this folder: lower.cpp has the order of things, weights.cpp what is loaded of weights,
// activations.cpp and engine.cpp what of those, multiply.cpp the rounds.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "layout/weight_image.h"
#include "pipelines/decode/schedule.h"
#include "pipelines/decode/shared_memory.h"
#include "pipelines/linear/linear_lowering.h"

namespace ladder {

class DecodeLowering : LinearLowering {
 public:
  DecodeLowering(const Problem& problem, const DecodeSchedule& schedule,
                 const OperandDecisions& decisions)
      : LinearLowering(problem, decisions, schedule.route, schedule.scale_place),
        schedule_(schedule),
        shared_(shared_memory(schedule, problem)) {}

  /// The whole program; once per object.
  Program run();

 private:
  // lower.cpp: the order of things.
  void declare();
  /// Of the operands and sums of all warps.
  Tiling tiling() const;
  void load_first(Body& body);
  bool needs_barrier_after_loads() const;

  /// Columns of a step of the matrix instruction.
  std::int64_t step_columns() const { return instruction_.k; }
  bool staged() const { return schedule_.stages > 1; }
  std::int64_t rows() const { return schedule_.block_rows(); }
  /// Columns of a warp in a round; blocks of the image of all warps along K in a round.
  std::int64_t warp_columns() const { return kBlock * schedule_.blocks_per_warp; }
  std::int64_t round_blocks() const { return schedule_.warps_k * schedule_.blocks_per_warp; }

  // weights.cpp: weights, scales and zero points of a round.
  void declare_weights();
  void declare_per_group(std::int64_t n_blocks);
  void declare_ring();
  /// A warp's words of one round: [N blocks, K blocks, chunks, lanes, words], or of one of its
  /// parts.
  Layout word_layout() const;
  /// Registers that a round's words are loaded to one by one.
  int word_parts() const { return schedule_.by_blocks ? schedule_.blocks_per_warp : 1; }
  std::vector<Affine> word_origin(const Affine& round, const Affine& sweep = 0) const;
  std::vector<Affine> group_origin(const Affine& round, const Affine& sweep = 0) const;
  /// The row of blocks of the image that the block's first warp has, and which part of it.
  Affine row_block(const Affine& sweep) const;
  Affine block_part() const;
  /// Where a round lies in the ring of words, and in those of scales and zero points.
  std::vector<Affine> ring_origin(const Affine& round) const;
  std::vector<Affine> group_ring_origin(const Affine& round) const;
  /// The first round, or as many as the depth, straight to registers.
  void load_weights(Body& body);
  /// A round to the registers in use; those of a round that the depth keeps.
  void refill_words(Body& body, const Affine& round, const Affine& sweep);
  bool loads_now() const;
  void refill_part(Body& body, int part, const Affine& round, const Affine& sweep);
  void refill_groups(Body& body, const Affine& round, const Affine& sweep);
  /// Rounds whose scales and zero points have registers.
  int group_depth() const;
  void use_piece(std::int64_t round);
  /// The words, scales and zero points of a round out of the ring.
  void load_round(Body& body, const Affine& round);
  /// Those of a round on their way to other registers, and from these to the ones that are used.
  void load_next(Body& body, const Affine& round);
  void take_next(Body& body);
  /// Starts the copies of one round; always closes a group, so that groups count rounds.
  void fetch(Body& body, const Affine& round);

  // activations.cpp: those of the block at once, or in rounds.
  void declare_activations();
  bool x_in_rounds() const { return schedule_.x_rounds > 0 && schedule_.sharers == 0; }
  /// Where the activations of a round begin in `x_warp_`.
  Affine staged_row(const Affine& round) const;
  Affine staged_column(const Affine& round) const;
  /// Starts the copies of a round's activations, or of all; nothing unless `guard` is below
  /// `below`.
  void copy_activations(Body& body, const Affine& round, const Affine& guard = 0,
                        std::int64_t below = 1);
  /// Declares them, and starts the copies that come before the first round.
  void first_activations(Body& body);
  /// Those copies are a group; waits for it with `pending` younger groups on their way. Copies that
  /// are not asynchronous need neither.
  void close_copies(Body& body, const Affine& round);
  void await_activations(Body& body, int pending);
  /// Before the products of a round: its activations are there, later ones on their way.
  void next_activations(Body& body, const Affine& round, const Affine& sweep = 0);
  void next_signalled(Body& body, const Affine& round);
  /// After them.
  void release_activations(Body& body, const Affine& round);
  Affine x_part(const Affine& round) const;
  /// The place of a round's activations is taken by later ones.
  bool x_reused() const { return schedule_.rounds > schedule_.x_rounds; }
  /// How many rounds ahead copies are started.
  int x_ahead() const { return schedule_.x_rounds - 1 - schedule_.x_slack; }

  // engine.cpp: all that comes first, activations by the copy engine.
  void load_by_engine(Body& body);
  /// All rounds at once, or some of those that have signals of their own.
  void copy_rows(Body& body);
  void copy_rounds(Body& body, int first, int count);

  // multiply.cpp: the sums of this block's columns in `acc_`, scaled.
  void multiply(Body& body);
  void declare_loops();
  /// `after` is called when the products of a part of the words are done.
  using AfterPart = std::function<void(Body&, int part)>;
  void multiply_round(Body& body, const Affine& round, const AfterPart& after = {});
  void load_activations(Body& body, const Affine& round, int part);
  void multiply_zeros(Body& body);
  void ring_rounds(Body& body);
  void register_rounds(Body& body);
  void deep_rounds(Body& body, const Affine& sweep);
  /// Multiplies and adds up one tile of rows after the other.
  void sweeps(Body& body);

  const DecodeSchedule& schedule_;
  const SharedMemory shared_;
  std::vector<ViewId> images_;  // by part of a warp's words in a round
  ViewId x_warp_ = -1, x_rows_ = -1, x_order_ = -1, ring_ = -1;
  BufferId x_tile_ = -1, ring_buffer_ = -1;
  SignalId x_full_ = -1, x_empty_ = -1, staged_ = -1;
  RegisterId next_words_ = -1;
  std::vector<std::vector<RegisterId>> pieces_;  // words by round, modulo the depth, and part
  std::vector<RegisterId> word_parts_of_round_;
  VariableId round_ = -1, group_ = -1, step_ = -1;
  std::int64_t steps_ = 0;             // of a group, in a part of the words
  std::vector<RegisterId> zero_sums_;  // by round, where all sweeps share them
  Layout group_layout_, group_ring_layout_;
  std::function<Affine(const Affine&)> first_group_;  // of the first warp, by round
  std::int64_t groups_ = 1;                           // of one warp in one round
};

}  // namespace ladder
