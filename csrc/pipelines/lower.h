// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "pipelines/schedule.h"
#include "program/program.h"
#include "schedule/decisions.h"

namespace ladder {

/// Parameters of a lowered linear layer, in order: the buffers of the program. Those that the
/// expression has not are not declared.
///   weight     u32, the image of layout/weight_image.h; padding holds any code of a finite number
///   scales     of Weight::scale, [groups][N / 64][8][8] as weight_image.h says; rows beyond n: 0
///   zeros      of Weight::zero_scalar(), in the same order; bytes for integer zero points
///   scale2     f32, one, or [n]
///   bias       of Formats::bias, [n]; may be null, which is none
///   gather     i32, [k]: the column of x that each column of the weight multiplies
///   x          of Formats::x, [m, k], row-major; of windows the images
///   x_scales   f32, [m], of Problem::rounded_x() only
///   residual   of Formats::y, [m, n], row-major; none of y's memory
///   y_scale    f32, one, of y of 8 bits only
///   y          of Formats::y, [m, n], row-major
///   workspace  f32, tiles * splits * tokens * rows of the tiles; ordered reduction only
///   counters   u32, tiles, zero before and after; ordered reduction only
///   items      u32, [items][kItemWords], of experts only: weight, scales, zeros, scale2 and gather
///              of an expert are expert * RoutedRows::bytes further, bias expert * n rounded
///              up to kBiasOfExpert; x, residual and y have the rows of all items, workspace and
///              counters as much for each item as is said above. Of a batch, and of passes, the
///              same without a table: items of Problem::m rows, the images of weights one behind
///              the other
/// From the bias of one expert to that of the next: whole words of 16 bytes.
constexpr std::int64_t kBiasOfExpert = 8;
/// Of one item with so many tiles: whole words of 16 bytes.
constexpr std::int64_t counters_of_item(std::int64_t tiles) { return (tiles + 3) / 4 * 4; }
struct Workspace {
  std::int64_t floats = 0, counters = 0;
};
Workspace workspace_of(const Problem& problem, const Schedule& schedule);
Workspace workspace_of(const Problem& problem, const DecodeSchedule& schedule);
Workspace workspace_of(const Problem& problem, const TileSchedule& schedule);
Workspace workspace_of(const Problem& problem, const WaveSchedule& schedule);
inline Workspace workspace_of(const Problem&, const DenseSchedule&) { return {}; }

/// The program of a schedule to which there is no objection().
/// Its waits and barriers are in place. with_barriers() would give the same ones, to which tests
/// hold the schedules that are compiled (first_programs_test.cpp). Deriving them anew, at every
/// first call, would take 3 ms on average and up to 170 where lowering takes 0.04.
Program lower(const Decisions& decisions, const Schedule& schedule);
Program lower(const Decisions& decisions, const DecodeSchedule& schedule);
Program lower(const Decisions& decisions, const TileSchedule& schedule);
Program lower(const Decisions& decisions, const WaveSchedule& schedule);
/// Throws Unsupported: a library multiplies.
Program lower(const Decisions& decisions, const DenseSchedule& schedule);

}  // namespace ladder
