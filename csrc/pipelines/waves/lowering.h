// SPDX-License-Identifier: Apache-2.0
//
// Writes the program of a wave kernel (schedule.h says what it does). Internal to this folder:
// lowering.cpp has the order of things, alternate.cpp that of waves that alternate, operands.cpp
// what is multiplied.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/weight_image.h"
#include "pipelines/linear/linear_lowering.h"
#include "pipelines/linear/raster.h"
#include "pipelines/waves/schedule.h"

namespace ladder {

class WaveLowering : LinearLowering {
 public:
  WaveLowering(const Decisions& decisions, const WaveSchedule& schedule,
               const OperandDecisions& operands)
      : LinearLowering(decisions, operands, schedule.route, schedule.scale_place),
        s_(schedule),
        grid_(grid_of(schedule, problem_)),
        memory_(wave_memory(schedule, problem_)),
        groups_(groups_of_wave(schedule, problem_)),
        blocks_(schedule.columns / kBlock),
        fit_(instruction_, 2 * kUnits) {}

  /// The whole program; once per object.
  Program run();

 private:
  /// One group is all of K: its scale multiplies once, at the end.
  bool whole_row() const { return problem_.groups() == 1; }
  void declare();
  Tiling tiling() const;
  /// The workgroup's first row, in units of which a tile has `factor`, and its first token.
  Affine first_row(std::int64_t factor) const { return raster_row(grid_, factor); }
  Affine first_token() const { return raster_token(grid_, s_.tokens); }
  void multiply(Body& body, const Affine& k_tile);
  /// Activations of a step of a group.
  void load_step(Body& body, const Affine& k_tile, const Affine& group, const Affine& step);

  // alternate.cpp
  /// All k-tiles, each half of the waves a phase from the other.
  void alternate(Body& body);
  /// The steps of a k-tile, two phases each. With `more` the next k-tile is on its way.
  void phases(Body& body, const Affine& k_tile, bool more);
  /// What a step of that brings of it and of the next.
  void move_ahead(Body& body, const Affine& k_tile, std::int64_t step, bool more);

  // operands.cpp
  void declare_weights();
  /// Codes of a k-tile, and its scales and zero points from one group on, to the registers in use
  /// or to those of the next k-tile, which take_next() makes the ones in use.
  void load_words(Body& body, const Affine& k_tile, RegisterId words);
  void load_scales(Body& body, const Affine& k_tile, bool next, const Affine& group = 0);
  void take_next(Body& body);

  void declare_activations();
  /// Parts of the columns of a k-tile that go to shared memory one behind the other.
  std::int64_t x_parts() const { return s_.alternate ? 2 : 1; }
  /// The view of a part of a stage; each is a view of its own.
  ViewId stage(const Affine& k_tile, std::int64_t part);
  /// Of a part of a k-tile, in x.
  std::vector<Affine> activations_at(const Affine& k_tile, std::int64_t part) const;
  void copy_elements(Body& body, const Affine& k_tile);
  /// Starts those of a k-tile, or of a part, on their way; then puts them into shared memory.
  void load_activations(Body& body, const Affine& k_tile, std::int64_t part = 0);
  void store_activations(Body& body, const Affine& k_tile, std::int64_t part = 0);

  const WaveSchedule& s_;
  const CtaGrid grid_;
  const WaveMemory memory_;
  const std::int64_t groups_, blocks_;  // of a wave in a k-tile
  const ImageFit fit_;
  ViewId image_ = -1, x_rows_ = -1, x_order_ = -1, x_stage_ = -1, x_wave_ = -1;
  RegisterId next_words_ = -1, x_next_ = -1;
  VariableId k_tile_ = -1;
  Steps steps_{};
};

}  // namespace ladder
