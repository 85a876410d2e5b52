// SPDX-License-Identifier: Apache-2.0
//
// Writes the program of a tile kernel (schedule.h says what it does). Internal to this folder:
// lowering.cpp has the order of things and one k-tile, ring.cpp the ring and the copies into it.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "layout/weight_image.h"
#include "pipelines/linear/linear_lowering.h"
#include "pipelines/linear/raster.h"
#include "pipelines/tiles/schedule.h"

namespace ladder {

class TileLowering : LinearLowering {
 public:
  TileLowering(const Decisions& decisions, const TileSchedule& schedule)
      : LinearLowering(decisions, decisions.of(schedule.route), schedule.route,
                       schedule.scale_place),
        s_(schedule),
        grid_(grid_of(schedule, problem_)),
        memory_(tile_memory(schedule, problem_)),
        groups_(groups_of_tile(schedule, problem_)),
        fit_(instruction_, schedule.units()),
        warpgroup_(product_row(schedule, problem_, *decisions.device)) {
    if (s_.producers) program_.roles = roles_of(s_, *decisions.device);
  }

  /// The whole program; once per object.
  Program run();

 private:
  // lowering.cpp
  /// One group is all of K.
  bool whole_row() const { return problem_.groups() == 1; }
  /// Its scale multiplies once, at the end.
  bool open() const { return whole_row() && !decoding_.scaled && !problem_.promotes_sums(); }
  /// Products are added to the same sums until the last column, which nothing scales before.
  bool one_sum() const { return open() || decoding_.scaled; }
  bool has_parts() const { return s_.token_parts > 1; }
  /// Blocks of the image in a k-tile, along K and along N.
  std::int64_t blocks() const { return s_.columns / kBlock; }
  std::int64_t row_blocks() const { return s_.rows / kBlock; }
  /// The CTA's first row, in units of which a tile has `factor`, and its first token.
  Affine first_row(std::int64_t factor) const { return raster_row(grid_, factor); }
  Affine first_token() const { return raster_token(grid_, s_.tokens); }
  void declare();
  /// K-tiles from those of one split to those of the next.
  std::int64_t split_tiles() const {
    return program_.tail ? tail_k_tiles(s_) : std::int64_t{s_.k_tiles};
  }
  Tiling tiling() const;
  void k_tile(Body& body);
  /// The copies of a k-tile are there; others of it, or of a later one, are on their way.
  void begin_k_tile(Body& body, const Affine& k_tile);
  /// `per_block` of each of `count` blocks, the first apart where it begins sums. Of a k-tile with
  /// producers, `releases` after the first.
  void each_block(Body& body, const Affine& k_tile, std::int64_t count, bool releases,
                  const std::function<void(Body&, const Affine& block, bool begins)>& per_block);
  /// The products of groups of whole blocks of the image, or of several groups in a block.
  void wide_groups(Body& body, const Affine& k_tile, std::int64_t blocks);
  void narrow_groups(Body& body, const Affine& k_tile, std::int64_t columns);
  /// Those of operands that have their scales.
  void scaled_operands(Body& body, const Affine& k_tile);
  /// The group of a k-tile to which the k-step `turn` of `step` belongs, each of `in_turn`.
  Affine group_of_step(const Affine& block, const Affine& step, std::int64_t turn,
                       std::int64_t in_turn) const;
  /// The products of `count` k-steps of a block of the image, from its step `first` on, the first
  /// of which `begins` sums.
  void multiply_steps(Body& body, const Affine& k_tile, const Affine& block, const Affine& first,
                      std::int64_t count, bool begins);
  /// One k-step, of a warpgroup with the operands of that turn of several, of which the first
  /// `begins` sums.
  void multiply(Body& body, const Affine& k_tile, const Affine& block, std::int64_t turn,
                std::int64_t in_turn, bool begins);
  /// The product of the step at `column` of a block of the k-tile, with the tokens from `token` on.
  MmaShared shared_product(RegisterId acc, RegisterId a, const Affine& k_tile, std::int64_t token,
                           const Affine& block, const Affine& column, bool replaces) const;
  void await_products(Body& body);
  /// The products of a group have ended, and its sums are scaled.
  void end_products(Body& body);

  // parts.cpp
  void declare_parts();
  /// Sums and totals are those of that part.
  void use_part(int part);
  void k_tile_in_parts(Body& body, const Affine& k_tile);
  /// All operands of a k-tile.
  void decode_k_tile(Body& body, const Affine& k_tile);
  /// Starts the products of a part with them.
  void multiply_part(Body& body, const Affine& k_tile, int part);
  /// All products but the last `pending` have ended, those of `part` among them, which is in use.
  void await_part(Body& body, int part, int pending);
  void bring_parts(Body& body, ViewId to);

  // tensors.cpp
  void declare_tensors();
  /// The products of a k-tile.
  void tensor_tile(Body& body, const Affine& k_tile);
  void tensor_block(Body& body, const Affine& k_tile, std::int64_t block);
  /// The products of the last k-tile, and so all, have ended.
  void await_tensors(Body& body, const Affine& k_tile);
  /// The sums, by some tokens at a time.
  void bring_sums(Body& body, ViewId to);

  // ring.cpp
  void declare_ring();
  void declare_words();
  void declare_groups();
  void declare_activations();
  /// Warps along the rows, over a tile whose `dimension` counts rows of blocks, in each of which
  /// they are as `of_block` says.
  Layout warps_over(int dimension, const Layout& of_block) const;
  Affine stage_of(const Affine& k_tile) const { return remainder(k_tile, s_.stages); }
  /// The view of a stage; each is a view of its own.
  ViewId at_stage(ViewId of, const Affine& k_tile, std::int64_t elements);
  /// The first group of a k-tile: k-tiles have whole groups, or groups whole k-tiles.
  Affine first_group(const PerGroup& part, const Affine& k_tile) const;
  /// Start the copies of a k-tile if `guard` is below `below`.
  void copy_weights(Body& body, const Affine& k_tile, const Affine& guard, std::int64_t below);
  void copy_activations(Body& body, const Affine& k_tile, const Affine& guard, std::int64_t below);
  void first_copies(Body& body);
  /// Scales and zero points that are loaded once.
  void load_whole_rows(Body& body);
  /// Signals of stages, which producers and consumers go by.
  void declare_stages(Body& body);
  void produce(Body& body, const Affine& k_tile);
  /// Consumers have read the stage of the k-tile before this, or of this.
  void release(Body& body, const Affine& k_tile);
  /// Scales and zero points of a k-tile, and codes of one of its blocks, to registers.
  void load_groups(Body& body, const Affine& k_tile);
  void load_words(Body& body, const Affine& k_tile, const Affine& block);

  const TileSchedule& s_;
  const CtaGrid grid_;
  const TileMemory memory_;
  const std::int64_t groups_;  // of a k-tile
  const ImageFit fit_;
  const MatrixInstruction* const warpgroup_;       // null: warps multiply
  std::vector<RegisterId> stages_of_a_;            // of warpgroups: decoded in turn
  std::vector<RegisterId> sums_in_turn_, totals_;  // of parts of the tokens
  ViewId weight_rows_ = -1, word_tile_ = -1, word_ring_ = -1;
  ViewId x_rows_ = -1, x_order_ = -1, x_tile_ = -1, x_ring_ = -1;
  VariableId k_tile_ = -1;
  SignalId full_ = -1, empty_ = -1;  // of each stage
  TensorId tensor_sums_ = -1, tensor_a_ = -1;
  SignalId freed_ = -1;  // of each place of operands: the products that read it have ended
};

}  // namespace ladder
