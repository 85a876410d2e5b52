// SPDX-License-Identifier: Apache-2.0
//
// What the lowerings of all pipelines share: the parameters of a linear layer
// (linear_lowering.cpp), what becomes of codes between registers and the matrix instruction
// (codes.cpp), and the way from sums in registers to y (sums.cpp). A pipeline derives from it and
// says how weights and activations reach the registers.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "expr/decoding.h"
#include "expr/problem.h"
#include "layout/digits.h"
#include "pipelines/linear/image_fit.h"
#include "program/program.h"
#include "schedule/decisions.h"
#include "schedule/decoding.h"
#include "schedule/route.h"

namespace ladder {

class LinearLowering {
 protected:
  using Body = std::vector<Statement>;

  LinearLowering(const Decisions& decisions, const OperandDecisions& operands, Route route,
                 ScalePlace scale_place)
      : problem_(decisions.problem),
        route_(route),
        scale_place_(scale_place),
        instruction_(*operands.core.instruction),
        operand_(operand_scalar(instruction_).value()),
        granule_(operands.hint.granularity_bytes),
        decoding_(instruction_.subnormals
                      ? decoding_on(*decisions.device, problem_, scale_place)
                      : without_subnormals(decoding_on(*decisions.device, problem_, scale_place),
                                           problem_)) {}

  // linear_lowering.cpp: declarations, whose numbers are in order of the calls, and the statements
  // around them. Names are made unique with an underscore, since each becomes one of the target's.
  template <class Op>
  static void emit(Body& body, Op op) {
    body.push_back({std::move(op)});
  }
  VariableId variable(std::string name, std::int64_t extent);
  BufferId buffer(std::string name, Level level, Scalar scalar, std::int64_t elements = 0,
                  bool constant = false);
  ViewId view(BufferId of, std::vector<std::int64_t> extents, std::vector<std::int64_t> strides);
  RegisterId reg(std::string name, Scalar scalar, Layout layout);
  /// One more like it.
  RegisterId another(RegisterId of);
  /// The program's name, grid and parameters.
  void declare_kernel(std::int64_t splits, std::int64_t tiles, int cluster, bool dependent_launch,
                      Reduction reduction);
  void declare_items();
  static void await_preceding(Body& body);
  /// Declares it, and initialises it here.
  SignalId signal(Body& body, Signal signal);
  bool digits() const { return route_ == Route::digits; }
  /// What codes of integers become that are unpacked as bytes, and codes of any kind.
  CodeBytes bytes_of_codes() const;
  Scalar byte_scalar() const;
  /// Operands are bytes of floats.
  bool float_bytes() const { return has_fields_of_e4m3(operand_); }
  /// True when rows of activations are copied asynchronously, in whole granules of the hint.
  bool whole_pieces() const;

  /// Scales or zero points, or second scales of these: [groups][N / 64][8][8] in global memory, a
  /// warp's rows in registers.
  struct PerGroup {
    std::string name;
    Scalar scalar;
    BufferId buffer;
    std::int64_t columns;     ///< of a group; of second scales of a superblock
    bool zeros = false;       ///< zero points, or second scales of such
    int of = -1;              ///< of second scales: the part that they multiply
    std::int64_t offset = 0;  ///< elements of the buffer before the first
    std::int64_t groups = 1;  ///< of a warp, or a tile, in a k-tile
    Layout layout = {};       ///< of those, by warps and lanes, over the table
    std::function<Affine(const Affine&)> first = nullptr;  ///< group of the first warp, by k-tile
    ViewId table = -1, ring = -1;
    ViewId to = -1, from = -1;  ///< rows that are copied to a stage of the ring
    RegisterId loaded = -1, rows = -1, next = -1;
    std::vector<std::pair<RegisterId, RegisterId>> pieces = {};  // as loaded, rows; by part
    RegisterId product = -1;  ///< of integers, the products with their second scales
  };
  /// [groups, N blocks, 8, 4, 8] of a part in global memory; lanes of four share a number.
  ViewId table_of(const PerGroup& part);
  /// Groups of `columns` that columns of a k-tile have, which are in one group or have whole ones.
  std::int64_t groups_in(std::int64_t columns, const PerGroup& part) const;
  /// Integers of the registers in use times their second scales, just before they are read.
  void multiply_seconds(Body& body);
  /// In which order warps, or waves, come to the groups of columns. In each of `parts` of a
  /// block's columns `warps_k` of them, side by side along K, have `columns` each, which belong to
  /// one group, or to several whole ones.
  struct GroupOrder {
    Layout over_k;                               ///< warps along K, over a table of [groups, ...]
    std::function<Affine(const Affine&)> first;  ///< group of the first warp, by part
  };
  GroupOrder group_order(std::int64_t columns, std::int64_t warps_k, std::int64_t parts,
                         std::int64_t group) const;
  RegisterId scale_rows() const { return rows_of(false); }
  RegisterId zero_rows() const { return rows_of(true); }

  // codes.cpp: the products of a group of columns, whose scale and zero point are those of
  // `operands_.group`.
  /// Of those types that are looked up: by code, or by code and relative scale.
  Statement declare_table(std::int64_t words);
  bool has_table() const { return relative() || decoding_.kind == Decoding::Kind::table; }
  bool relative() const { return scale_place_ == ScalePlace::relative; }
  /// Operands are bytes that have their scales.
  bool scaled_bytes() const { return scales_bytes(problem_, scale_place_); }
  /// Operands and sums of `tokens` tokens a warp, as `fit` has them. With `running` the sums of
  /// groups are added up in registers of their own, else there is one group, or operands have the
  /// scales; sums of integers always become others. `a_warps`, `b_warps` and `sum_warps` spread the
  /// tile of a warp over the warps.
  struct Tiling {
    Layout a_warps, b_warps, sum_warps;
    ImageFit fit;
    std::int64_t tokens;
    bool b_in_registers = true;  ///< else the instruction reads activations from shared memory
    bool running;
    Layout largest = {};  ///< [1, rows] of sums, for relative operands
  };
  void declare_operands(Body& body, const Tiling& tiling);
  /// Stored zero points multiply the sum of a group's activations, which one more product gives.
  bool zeros_by_product() const;
  /// Loops over the k-steps of a group, and over groups.
  struct Steps {
    VariableId group, step;
    std::int64_t count;  ///< of a group
  };
  /// Of words that have `all` k-steps of `groups` groups.
  Steps declare_steps(std::int64_t groups, std::int64_t all);
  /// Before the first group: sums of groups begin at zero.
  void begin_sums(Body& body);
  /// What operands of a group are made with.
  void prepare_group(Body& body);
  /// The three parts of a group: before its steps, each step, and after its steps.
  void begin_group(Body& body);
  /// Multiplies by `instruction_`, with activations in `operands_.b`.
  void multiply_step(Body& body);
  /// The statement by which `acc` += `a` times the activations of the step.
  using Product = std::function<Statement(RegisterId acc, RegisterId a)>;
  void multiply_step(Body& body, const Product& product);
  /// The operand of the step, and only that; and what multiplies it.
  void decode_step(Body& body);
  void multiply_decoded(Body& body, const Product& product);
  void end_group(Body& body);
  /// After the last group: the sums are in `acc_`. share_sums() calls it.
  void end_sums(Body& body);
  /// What the steps of the epilogue make of sum_, whose rows are those from `first` on: f32, or the
  /// codes of y.
  RegisterId after_sums(Body& body, const Affine& first);

  struct Operands {
    RegisterId a, b;
    RegisterId total;                         ///< acc_ itself when there is nothing to add it to
    RegisterId zero_row = -1, zero_sum = -1;  ///< set when a product of its own adds the zero point
    bool zero_known = false;                  ///< zero_sum is there already, for all rows
    int zero_products = 1;                    ///< times that zero_sum is added
    RegisterId zeros = -1;                    ///< set when operands are made with stored ones
    RegisterId largest = -1;                  ///< the scales of sums, where operands are relative
    bool open = false;                        ///< the group is all of K: end_sums() ends it
    bool biased = false;                      ///< sums of a group are Scale::biased
    bool begun = false;  ///< by its first product, which needs no sums to add to
    Layout zeros_layout;
    int scale_exponent[2];          ///< by parity of eight rows
    int last_exponent[2] = {0, 0};  ///< of the sums of all groups
    Affine group;                   ///< of the registers of scales and zero points
    Affine group_of_step;           ///< the same, of operands that are relative
    Affine block, in_block;         ///< of the words that hold a step

    /// The zero point takes one more product in each step.
    bool zero_in_steps() const { return zero_row >= 0 && !zero_known; }
  };

  // sums.cpp: from the sums of warps to y.
  /// Of a CTA.
  struct Sums {
    std::int64_t rows, tokens;
    std::int64_t warps_k;     ///< warps along K, whose sums are added up
    std::int64_t pitch;       ///< floats from one token to the next, in shared memory
    std::int64_t elements;    ///< of the buffer in shared memory
    BufferId over = -1;       ///< which may take the place of that one
    bool read_last = true;    ///< other threads may still read what it takes the place of
    std::int64_t places = 1;  ///< buffers that sweeps take in turn
    std::int64_t sweeps = 1;  ///< whose sums are kept for the peers of a cluster
    std::int64_t kept = 0;    ///< elements of those; 0: peers read the sums of warps
    bool direct =
        false;  ///< the sums of a warp are all of its rows and tokens: nobody adds to them
    std::int64_t token_extent = kTokens;  ///< kTokens: the CTA's tokens are all of the call
    /// Behind `elements`, for the scales of so many tokens, a multiple of the threads, which are
    /// read once; 0: each thread reads those of its sums.
    std::int64_t token_scales = 0;
    std::int64_t splits = 1, tiles = 1;  ///< CTAs; in a tail those of its tiles
    /// Brings them to shared memory, seen as [1, rows, tokens], where they are not in acc_.
    std::function<void(Body&, ViewId)> bring = nullptr;
    std::function<Affine(const Affine& sweep)> first_row;
    Affine first_token = 0;
    Affine in_tile = 0;  ///< the same, from the CTA's first token on
  };
  /// Of `rows` rows of sums: a thread has pairs of rows of one token, neighbours, or gate and up.
  Layout output_layout(std::int64_t rows) const;
  void declare_sums(std::int64_t rows);
  /// Puts the sums of each warp where the other warps can read them: [warp along K, row, token].
  ViewId share_sums(Body& body, const Affine& sweep = 0);
  /// The scales of the CTA's tokens, in registers, and from there to shared memory.
  RegisterId load_token_scales(Body& body);
  void share_token_scales(Body& body, BufferId sums, RegisterId scales);
  /// The sums of the warps along K in `sum_`, where they are direct those in registers, and what
  /// becomes of them: `use` adds that.
  void add_warps(Body& body, const Affine& sweep, const std::function<void(Body&)>& use);
  /// The same, once or more often, of what is in shared memory and all threads may read.
  void with_sums(Body& body, ViewId by_warp, const std::function<void(Body&)>& use);
  /// sum_ += part for part = first .. count - 1.
  void add_parts(Body& body, std::int64_t count, std::int64_t first, std::string name,
                 const std::function<Load(Affine)>& load);
  /// Through shared memory, that of a cluster or global memory, to y.
  void reduce(Body& body, Reduction reduction);
  /// Every block of the cluster adds up its share of the rows, out of the memory of all.
  void add_cluster(Body& body);
  /// The sums of the block, of one sweep, to where its peers will read them.
  void keep_sums(Body& body, const Affine& sweep);
  /// This block's share of what its peers kept of a sweep, added up into y.
  void add_kept(Body& body, const Affine& sweep);
  /// The block that comes last adds what all left in global memory.
  void add_in_order(Body& body);
  /// Tiles that several blocks share are added up in order, others are there.
  void add_tail(Body& body);
  /// The sums of all splits in global memory: [tile and split, row, token].
  ViewId parts_in_order();
  /// Number of the tile among those that have parts.
  VariableId shared_tile() const { return program_.tail ? program_.tail->tile : kTile; }
  /// Of this block, for the block that comes last.
  void leave_part(Body& body, ViewId parts);
  void add_if_last(Body& body, ViewId parts);
  /// Takes `sum_` through the epilogue, rounds it and writes it to y: rows from `first` on.
  void finish(Body& body, const Affine& first);

  const Problem& problem_;
  const Route route_;
  const ScalePlace scale_place_;
  const MatrixInstruction& instruction_;
  const Scalar operand_;  // of the activations
  const int granule_;     // bytes that every level moves whole
  const Decoding decoding_;
  Program program_{};
  BufferId weight_ = -1, x_ = -1, x_scales_ = -1, y_ = -1, workspace_ = -1, counters_ = -1;
  BufferId scale2_ = -1, bias_ = -1, gather_ = -1, residual_ = -1, y_scale_ = -1;
  ViewId table_ = -1, kept_ = -1, token_scales_ = -1;
  RegisterId unit_ = -1;  // of x, where it is split into digits
  RegisterId words_ = -1, acc_ = -1, sum_ = -1, part_ = -1;
  // Scales, then zero points, then second scales of these, where there are such.
  std::vector<PerGroup> per_group_;
  Operands operands_{};
  Sums sums_{};

 private:
  /// What multiplies, or is subtracted, of the scales or the zero points; -1 where there are none.
  RegisterId rows_of(bool zeros) const;
  /// Takes stored zero points times the activations from the sums of a group.
  void subtract_zeros(Body& body);
  /// Integers of f16 are read beside ones, so that they are operands as they are.
  bool reads_ones() const;
  /// Integers are made into (code - zero) * 2^that.
  int operand_exponent() const;
};

}  // namespace ladder
