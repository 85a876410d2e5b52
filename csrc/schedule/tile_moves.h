// SPDX-License-Identifier: Apache-2.0
//
// LADDER's ScheduleTransform: the primitives that carry a tensor from one memory level to tiles of
// the next, decided from the two shapes, the two types and the device's hint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/hint.h"
#include "expr/iterators.h"
#include "schedule/primitives.h"

namespace ladder {

/// A tile at one level: what it holds and how much of it.
struct LevelTile {
  std::string level;
  TileType type;
  Shape shape;
};

/// The way from `from` to tiles of `to`, all in the order slice, pad, convert, map.
struct TileMove {
  LevelTile from, to;
  /// Where each element of a `to` tile lies at its level; nothing: row-major.
  std::optional<IndexMap> map;

  /// How many tiles of `to` cover `from`, the last ones padded.
  std::int64_t pieces() const;
  /// The transforms of piece `index`, row-major. Throws InvalidArgument outside 0 to pieces() - 1.
  std::vector<Transform> steps(std::int64_t index) const;
};

/// ScheduleTransform. `piece` is the tile of the level after `to`: when its rows are not the runs
/// that the hint asks for, the move ends with a map that stores each piece as whole runs.
/// Throws InvalidArgument when pieces do not divide `to`.
TileMove schedule_move(LevelTile from, LevelTile to, const LevelTile& piece, const Hint& hint);

/// The map of schedule_move: a [R, C] tile of [r, c] pieces, each flattened row-major and folded
/// into rows of `run` elements: [pieces, r * c / run, run].
IndexMap piece_map(const Shape& tile, const Shape& piece, std::int64_t run);

/// The move that reads one such piece: a slice of the stored runs, folded back to the piece.
TileMove read_piece(const TileMove& stored, LevelTile piece);

/// The views of normalise() as index maps: [s, i, k] to the indices of `a`, [s, j, k] to those of
/// `b`. A coordinate outside the tensor is a zero, so a map may leave the shape; indices are never
/// below -offset, which is added to them: the padding of a convolution.
struct ViewMap {
  IndexMap map;
  Shape offset;
};
ViewMap view_of_a(const MatmulForm& form);
ViewMap view_of_b(const MatmulForm& form);

/// "global uint4 - 8 [4096, 4096] to shared float16 [16, 64] as [4, 4, 64]: 16384 pieces" and the
/// first piece's steps, one a line.
std::string to_string(const TileMove& move);

}  // namespace ladder
