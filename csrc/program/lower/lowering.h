// SPDX-License-Identifier: Apache-2.0
//
// Writes the program of one linear layer. A warp has 16 to 64 rows; what it does with its columns
// is one of four shapes:
//
//     one round        all its words to registers, then multiply
//     register rounds  the next round's words on their way to registers while this one's multiply
//     ring rounds      each lane copies what it will use to shared memory, `stages` rounds ahead
//     deep rounds      `depth` rounds in registers, each loaded anew once it was multiplied
//
// of which the last may go over several tiles of rows, one sweep after the other,
// after which the sums of the warps, and of the blocks that share rows, are added up. Internal to
// csrc/program/lower: lower.cpp has the order of things, operands.cpp what is loaded of weights,
// activations.cpp what of those, decode.cpp what becomes of codes, multiply.cpp the rounds,
// reduce.cpp the sums.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "expr/decoding.h"
#include "expr/linear.h"
#include "layout/digits.h"
#include "layout/weight_image.h"
#include "program/program.h"
#include "schedule/decisions.h"
#include "schedule/schedule.h"
#include "schedule/shared_memory.h"

namespace ladder {

class Lowering {
 public:
  Lowering(const Linear& expr, const Schedule& schedule, const OperandDecisions& decisions)
      : expr_(expr),
        schedule_(schedule),
        instruction_(*decisions.core.instruction),
        operand_(tile_operand(instruction_).value()),
        granule_(decisions.hint.granularity_bytes),
        decoding_(decoding_of(expr, schedule.scale_place)),
        shared_(shared_memory(schedule, expr)) {}

  /// The whole program; once per object.
  Program run();

 private:
  using Body = std::vector<Statement>;

  // lower.cpp: declarations, whose numbers are in order of the calls, and the statements around
  // them. Names are made unique with an underscore, since each becomes one of the target's.
  template <class Op>
  static void emit(Body& body, Op op) {
    body.push_back({std::move(op)});
  }
  VariableId variable(std::string name, std::int64_t extent);
  BufferId buffer(std::string name, Level level, Scalar scalar, std::int64_t elements = 0,
                  bool constant = false);
  ViewId view(BufferId of, std::vector<std::int64_t> extents, std::vector<std::int64_t> strides);
  RegisterId reg(std::string name, Scalar scalar, Layout layout);
  void declare();
  void await_preceding(Body& body);
  void load_first(Body& body);
  bool needs_barrier_after_loads() const;

  bool digits() const { return schedule_.route == Route::digits; }
  /// Columns of a step of the matrix instruction.
  std::int64_t step_columns() const { return instruction_.k; }
  bool staged() const { return schedule_.stages > 1; }
  std::int64_t rows() const { return schedule_.block_rows(); }
  /// Columns of a warp in a round; blocks of the image of all warps along K in a round.
  std::int64_t warp_columns() const { return kBlock * schedule_.blocks_per_warp; }
  std::int64_t round_blocks() const { return schedule_.warps_k * schedule_.blocks_per_warp; }
  /// The warps of a block: thread = (warp_n * warps_k + warp_k) * 32 + lane, over [w, rows, n].
  Layout warps() const;

  // operands.cpp: weights, scales and zero points of a round.
  /// Scales or zero points: [groups][N / 64][8][8] in global memory, a warp's rows in registers.
  struct PerGroup {
    std::string name;
    Scalar scalar;
    BufferId buffer;
    ViewId table = -1, ring = -1;
    RegisterId loaded = -1, rows = -1, next = -1;
    std::vector<std::pair<RegisterId, RegisterId>> pieces = {};  // as loaded, rows; by round
  };
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
  /// True when rows of activations are copied asynchronously, in whole granules of the hint.
  bool whole_pieces() const;
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

  // decode.cpp: from stored codes to operands, and what else the type of the weight needs.
  void declare_table(Body& body);
  /// What one group needs before its first step, and the operands of a step in `operands_.a`.
  void prepare_group(Body& body);
  void decode_step(Body& body);
  /// Takes stored zero points times the activations from the sums of a group.
  void subtract_zeros(Body& body);
  /// sum_ times the second scale, plus the bias of the rows from `first` on.
  void scale_and_bias(Body& body, const Affine& first);
  /// Stored zero points multiply the sum of a group's activations, which one more product gives.
  bool zeros_by_product() const;
  /// Integers are made into (code - zero) * 2^that.
  int operand_exponent() const;

  // multiply.cpp: the sums of this block's columns in `acc_`, scaled.
  void multiply(Body& body);
  void declare_operands(Body& body);
  /// `after` is called when the products of a part of the words are done.
  using AfterPart = std::function<void(Body&, int part)>;
  void multiply_round(Body& body, const Affine& round, const AfterPart& after = {});
  void load_activations(Body& body, const Affine& round, int part);
  /// Before the first round of a tile of rows, and after the last: its sums are in `acc_`.
  void begin_sums(Body& body);
  void end_sums(Body& body);
  /// Of the scaled sums of a block's columns.
  void join_digits(Body& body);
  void multiply_zeros(Body& body);
  void ring_rounds(Body& body);
  void register_rounds(Body& body);
  void deep_rounds(Body& body, const Affine& sweep);
  /// Multiplies and adds up one tile of rows after the other.
  void sweeps(Body& body);
  RegisterId scale_rows() const { return expr_.scale ? per_group_.front().rows : -1; }
  RegisterId zero_rows() const { return per_group_.back().rows; }

  // reduce.cpp: from the sums of a warp to y.
  Layout output_layout(std::int64_t rows) const;
  void declare_sums(std::int64_t rows);
  /// Puts the sums of each warp where the other warps can read them: [warp along K, row, token].
  ViewId share_sums(Body& body, const Affine& sweep = 0);
  /// The sums of the warps along K in `sum_`, and what becomes of them: `use` adds that.
  void add_warps(Body& body, const Affine& sweep, const std::function<void(Body&)>& use);
  /// sum_ += part for part = first .. count - 1.
  void add_parts(Body& body, std::int64_t count, std::int64_t first, std::string name,
                 const std::function<Load(Affine)>& load);
  /// Every block of the cluster adds up its share of the rows, out of the memory of all.
  void add_cluster(Body& body);
  /// The sums of the block, of one sweep, to where its peers will read them.
  void keep_sums(Body& body, const Affine& sweep);
  /// This block's share of what its peers kept of a sweep, added up into y.
  void add_kept(Body& body, const Affine& sweep);
  /// The block that comes last adds what all left in global memory.
  void add_in_order(Body& body);
  /// Rounds `sum_` and writes it to y from row `first`.
  void finish(Body& body, const Affine& first);
  /// The first row of the block in a sweep.
  Affine first_row(const Affine& sweep = 0) const;

  /// What multiply_round works on.
  struct Operands {
    RegisterId a, b;
    RegisterId total;                         ///< acc_ itself when there is nothing to add it to
    RegisterId zero_row = -1, zero_sum = -1;  ///< set when a product of its own adds the zero point
    std::vector<RegisterId> zero_sums = {};   ///< by round, where all sweeps share them
    RegisterId zeros = -1;                    ///< set when operands are made with stored ones
    int scale_exponent[2];                    ///< by parity of eight rows
    int last_exponent[2] = {0, 0};            ///< of the sums of all groups
    VariableId group, step;
    std::int64_t steps;      ///< of a group, in a part of the words
    Affine block, in_block;  ///< of the words that hold a step, by group and step
  };

  const Linear& expr_;
  const Schedule& schedule_;
  const MatrixInstruction& instruction_;
  const Scalar operand_;  // of the activations
  const int granule_;     // bytes that every level moves whole
  const Decoding decoding_;
  const SharedMemory shared_;
  Program program_{};
  BufferId weight_ = -1, x_ = -1, y_ = -1, workspace_ = -1, counters_ = -1;
  BufferId scale2_ = -1, bias_ = -1, gather_ = -1, ring_buffer_ = -1;
  std::vector<ViewId> images_;  // by part of a warp's words in a round
  ViewId x_warp_ = -1, x_rows_ = -1, x_order_ = -1, ring_ = -1, table_ = -1;
  BufferId x_tile_ = -1;
  SignalId x_full_ = -1, x_empty_ = -1, staged_ = -1;
  RegisterId unit_ = -1;  // of x, where it is split into digits
  RegisterId words_ = -1, next_words_ = -1, acc_ = -1, sum_ = -1, part_ = -1;
  std::vector<PerGroup> per_group_;              // scales, then zero points, where there are such
  std::vector<std::vector<RegisterId>> pieces_;  // words by round, modulo the depth, and part
  std::vector<RegisterId> word_parts_of_round_;
  ViewId kept_ = -1;
  VariableId round_ = -1;
  Layout group_layout_, group_ring_layout_;
  std::function<Affine(const Affine&)> first_group_;  // of a warp, by round
  std::int64_t groups_ = 1;                           // of one warp in one round
  Operands operands_{};
};

}  // namespace ladder
