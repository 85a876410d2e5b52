// SPDX-License-Identifier: Apache-2.0
//
// Writes the program of a decode kernel. Internal to this folder. What every way has is here:
//
//     lower.cpp        the order of things, and which class lowers which way of weights
//     weights.cpp      where a k-tile's words, scales and zero points lie; loads to registers
//     activations.cpp  activations by threads: at once, in stages, with signals
//     bulk_copy.cpp    activations by the copy engine
//     k_tile.cpp       the products of a k-tile
//
// A warp has 16 to 64 rows; how the weights of its columns come is a class of its own:
//
//     ThroughRegisters         all at once, or the next k-tile on its way to registers
//     RingLowering             each lane copies what it will use to shared memory, stages ahead
//     RegisterStagesLowering   k-tiles in registers, each loaded anew once it was multiplied
//
// after which the sums of the warps, and of the CTAs that share rows, are added up.
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

class DecodeLowering : protected LinearLowering {
 public:
  virtual ~DecodeLowering() = default;

  /// The whole program; once per object.
  Program run();

 protected:
  /// What a way of weights keeps in registers.
  struct Kept {
    int k_tiles = 1;        ///< whose words have registers of their own
    int group_k_tiles = 1;  ///< whose scales and zero points have such
    int parts = 1;          ///< of a k-tile's words, which are loaded one by one
    bool early = false;     ///< loads stay where they stand: the assembler would move them
  };
  DecodeLowering(const Decisions& decisions, const DecodeSchedule& schedule, const Kept& kept)
      : LinearLowering(decisions, decisions.of(schedule.route), schedule.route,
                       schedule.scale_place),
        schedule_(schedule),
        shared_(shared_memory(schedule, problem_)),
        kept_(kept) {}

  // lower.cpp: the order of things.
  /// What comes before the first k-tile, down to the wait for its activations.
  virtual void load_first(Body& body);
  /// From what load_first() brought to y.
  virtual void multiply(Body& body);
  /// The products of all k-tiles.
  virtual void main_loop(Body& body) = 0;
  /// Operands and loops of a k-tile.
  void declare_products(Body& body);

  std::int64_t rows() const { return schedule_.tile_rows(); }
  /// Blocks of the image of all warps along K in a k-tile.
  std::int64_t k_tile_blocks() const { return schedule_.warps_k * schedule_.blocks_per_warp; }
  /// Columns of a step of the matrix instruction.
  std::int64_t step_columns() const { return instruction_.k; }
  bool in_stages() const { return schedule_.activation_stages() > 0; }

  // weights.cpp: weights, scales and zero points of a k-tile. A CTA with several tiles of rows
  // comes to them one after the other; `tile` is its number.
  void declare_weights();
  /// A warp's words of one k-tile: [N blocks, K blocks, chunks, lanes, words], or of one of its
  /// parts.
  Layout word_layout() const;
  std::vector<Affine> word_origin(const Affine& k_tile, const Affine& tile = 0) const;
  std::vector<Affine> group_origin(const PerGroup& part, const Affine& k_tile,
                                   const Affine& tile = 0) const;
  /// [group, N block, g, lane of four, j]: the scales or zero points that a warp's lanes have.
  Layout groups_of_lanes(const PerGroup& part) const;
  /// Those of the first k-tiles, as many as registers are kept for, straight to these.
  void load_weights(Body& body);
  /// The registers of a k-tile become those in use.
  void use_registers_of(std::int64_t k_tile);
  /// A k-tile to the registers in use: its words, one part of them, its scales and zero points.
  void load_words(Body& body, const Affine& k_tile, const Affine& tile);
  void load_part(Body& body, int part, const Affine& k_tile, const Affine& tile);
  void load_groups(Body& body, const Affine& k_tile, const Affine& tile);

  // activations.cpp: those of all k-tiles at once, or in stages.
  /// Declares them, and starts the copies that come before the first k-tile.
  void first_activations(Body& body);
  void declare_activations();
  /// Starts the copies of a k-tile's activations, or of all; nothing unless `guard` is below
  /// `below`.
  void copy_activations(Body& body, const Affine& k_tile, const Affine& guard = 0,
                        std::int64_t below = 1);
  /// Waits for those copies with `pending` younger groups on their way. Copies that are not
  /// asynchronous need no wait.
  void await_activations(Body& body, int pending);
  /// Before the products of a k-tile: its activations are there, later ones on their way.
  void next_activations(Body& body, const Affine& k_tile, const Affine& tile = 0);

  // k_tile.cpp: the products of a k-tile.
  /// Called when the products of a part of the words are done.
  using AfterPart = std::function<void(Body&, int part)>;
  void multiply_k_tile(Body& body, const Affine& k_tile, const AfterPart& after = {});
  void load_activations(Body& body, const Affine& k_tile, int part);

  const DecodeSchedule& schedule_;
  const SharedMemory shared_;
  const Kept kept_;
  std::vector<ViewId> images_;  // by part of a warp's words in a k-tile
  std::int64_t groups_ = 1;     // of one warp in one k-tile
  VariableId group_ = -1, step_ = -1;
  std::int64_t steps_ = 0;  // of a group, in a part of the words

 private:
  // lower.cpp
  /// The program's grid and parameters, and its sums.
  void declare();
  /// Of the operands and sums of all warps.
  Tiling tiling() const;
  bool needs_barrier_after_loads() const;

  // weights.cpp
  /// Columns of a warp in a k-tile.
  std::int64_t warp_columns() const { return kBlock * schedule_.blocks_per_warp; }
  /// The layout by which a lane holds a k-tile's scales or zero points.
  virtual Layout groups_in_registers(const PerGroup& part) const { return part.layout; }
  void declare_per_group();
  /// The row of blocks of the image that the CTA's first warp has, and which part of it.
  Affine row_block(const Affine& tile) const;
  Affine block_part() const;

  // activations.cpp
  /// Where the activations of a k-tile begin in `x_warp_`.
  Affine staged_row(const Affine& k_tile) const;
  Affine staged_column(const Affine& k_tile) const;
  Affine stage_of(const Affine& k_tile) const;
  /// How many k-tiles ahead copies are started.
  int k_tiles_ahead() const;
  /// The copies of a k-tile are a group of their own, or arrive at its signal.
  void close_copies(Body& body, const Affine& k_tile);
  void next_staged(Body& body, const Affine& k_tile, const Affine& tile);
  void next_signalled(Body& body, const Affine& k_tile);
  /// After the products of a k-tile.
  void release_activations(Body& body, const Affine& k_tile);

  // bulk_copy.cpp: all that comes first.
  void load_by_bulk_copy(Body& body, const activations::BulkCopy& copy);
  /// All k-tiles at once, or some of those that have signals of their own.
  void copy_rows(Body& body, bool multicast);
  void copy_k_tiles(Body& body, int first, int count, bool multicast);

  ViewId x_warp_ = -1, x_rows_ = -1, x_order_ = -1;
  BufferId x_tile_ = -1;
  SignalId full_ = -1, empty_ = -1;                      // of a stage of signalled activations
  SignalId copied_ = -1;                                 // by bulk copy: of a k-tile, or of all
  std::vector<std::vector<RegisterId>> words_of_stage_;  // by stage and part
  std::vector<RegisterId> words_by_part_;                // those in use
};

}  // namespace ladder
