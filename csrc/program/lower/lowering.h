// SPDX-License-Identifier: Apache-2.0
//
// Writes the program of one linear layer. A warp has 64 rows; what it does with its columns is one
// of three shapes:
//
//     one round        all its words to registers, then multiply
//     register rounds  the next round's words on their way to registers while this one's multiply
//     ring rounds      each lane copies what it will use to shared memory, `stages` rounds ahead
//
// after which the sums of the warps, and of the blocks that share rows, are added up. Internal to
// csrc/program/lower: lower.cpp has the order of things, operands.cpp what is loaded, multiply.cpp
// the rounds, reduce.cpp the sums.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "expr/linear.h"
#include "layout/weight_image.h"
#include "program/program.h"
#include "schedule/schedule.h"

namespace ladder {

class Lowering {
 public:
  Lowering(const Linear& expr, const Schedule& schedule, const MatrixInstruction& instruction)
      : expr_(expr), schedule_(schedule), instruction_(instruction) {}

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
  void load_first(Body& body);

  bool staged() const { return schedule_.stages > 1; }
  std::int64_t rows() const { return schedule_.block_rows(); }
  /// Columns of a warp in a round; blocks of the image of all warps along K in a round.
  std::int64_t warp_columns() const { return kBlock * schedule_.blocks_per_warp; }
  std::int64_t round_blocks() const { return schedule_.warps_k * schedule_.blocks_per_warp; }
  /// The warps of a block: thread = (warp_n * warps_k + warp_k) * 32 + lane, over [w, rows, n].
  Layout warps() const;

  // operands.cpp: weights and scales of a round, activations of the block.
  void declare_weights();
  void declare_scales(std::int64_t n_blocks);
  void declare_ring();
  /// A warp's words of one round: [N blocks, K blocks, chunks, lanes, words].
  Layout word_layout() const;
  std::vector<Affine> word_origin(const Affine& round) const;
  std::vector<Affine> scale_origin(const Affine& round) const;
  /// Where a round lies in the ring of words, and in that of scales.
  std::vector<Affine> ring_origin(const Affine& round) const;
  std::vector<Affine> scale_ring_origin(const Affine& round) const;
  /// One round, straight to registers.
  void load_weights(Body& body);
  /// Starts the copies of one round; always closes a group, so that groups count rounds.
  void fetch(Body& body, const Affine& round);
  void copy_activations(Body& body);

  // multiply.cpp: the sums of this block's columns in `acc_`, scaled.
  void multiply(Body& body);
  void declare_operands(Body& body);
  void multiply_round(Body& body, const Affine& round);
  void ring_rounds(Body& body);
  void register_rounds(Body& body);
  int operand_exponent() const;

  // reduce.cpp: from the sums of a warp to y.
  Layout output_layout(std::int64_t rows) const;
  void declare_sums(std::int64_t rows);
  /// Puts the sums of each warp where the other warps can read them: [warp along K, row, token].
  ViewId share_sums(Body& body);
  /// The sums of the warps along K in `sum_`.
  void add_warps(Body& body);
  /// sum_ += part for part = first .. count - 1.
  void add_parts(Body& body, std::int64_t count, std::int64_t first, std::string name,
                 const std::function<Load(Affine)>& load);
  /// Every block of the cluster adds up its share of the rows, out of the memory of all.
  void add_cluster(Body& body);
  /// The block that comes last adds what all left in global memory.
  void add_in_order(Body& body);
  /// Rounds `sum_` and writes it to y from row `first`.
  void finish(Body& body, const Affine& first);

  /// What multiply_round works on.
  struct Operands {
    RegisterId a, b;
    RegisterId total;                         ///< acc_ itself when there is nothing to add it to
    RegisterId zero_row = -1, zero_sum = -1;  ///< set when a product of its own adds the zero point
    int scale_exponent[2];                    ///< by parity of eight rows
    VariableId group, step;
    std::int64_t steps;      ///< of a group
    Affine block, in_block;  ///< of the words that hold a step, by group and step
  };

  const Linear& expr_;
  const Schedule& schedule_;
  const MatrixInstruction& instruction_;
  Program program_{};
  BufferId weight_ = -1, scales_ = -1, x_ = -1, y_ = -1, workspace_ = -1, counters_ = -1;
  BufferId ring_buffer_ = -1;
  ViewId image_ = -1, table_ = -1, x_warp_ = -1, ring_ = -1, scale_ring_ = -1;
  RegisterId words_ = -1, loaded_scale_ = -1, scale_ = -1, acc_ = -1, sum_ = -1, part_ = -1;
  VariableId round_ = -1;
  Layout scale_layout_, scale_ring_layout_;
  std::function<Affine(const Affine&)> first_group_;  // of a warp, by round
  std::int64_t groups_ = 1;                           // of one warp in one round
  Operands operands_{};
};

}  // namespace ladder
