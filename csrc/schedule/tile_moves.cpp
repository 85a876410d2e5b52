// SPDX-License-Identifier: Apache-2.0
#include "schedule/tile_moves.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/integers.h"

namespace ladder {
namespace {

std::int64_t count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Shape tiles(const Shape& whole, const Shape& tile) {
  Shape out;
  for (std::size_t d = 0; d < whole.size(); ++d) out.push_back(ceil_div(whole[d], tile[d]));
  return out;
}

/// The coordinate `input` of the iterators of `fused` as digits of it, in mixed radix.
void unfuse(const Fused& fused, int input, const TensorExpr& problem, std::vector<IndexExpr>& at) {
  const auto whole = IndexExpr::of(input, fused.extent);
  std::int64_t divisor = 1;
  for (auto it = fused.iterators.rbegin(); it != fused.iterators.rend(); ++it) {
    const auto extent = problem.iterators[*it].extent;
    at[*it] = whole / divisor % extent;
    divisor *= extent;
  }
}

ViewMap view(const MatmulForm& form, const Access& access, const Fused& rows) {
  std::vector<IndexExpr> at(form.expr.iterators.size(), IndexExpr(0));
  unfuse(form.s, 0, form.expr, at);
  unfuse(rows, 1, form.expr, at);
  unfuse(form.k, 2, form.expr, at);
  ViewMap out{{{form.s.extent, rows.extent, form.k.extent}, {}}, {}};
  for (const AffineIndex& index : access.indices) {
    const std::int64_t offset = std::max<std::int64_t>(-index.constant, 0);
    IndexExpr sum(index.constant + offset);
    for (const IndexTerm& term : index.terms) sum = sum + at[term.iterator] * term.coefficient;
    out.map.outputs.push_back(sum);
    out.offset.push_back(offset);
  }
  return out;
}

}  // namespace

std::int64_t TileMove::pieces() const { return count(tiles(from.shape, to.shape)); }

std::vector<Transform> TileMove::steps(std::int64_t index) const {
  LADDER_REQUIRE(0 <= index && index < pieces(), "piece ", index, " of ", pieces());
  const Shape grid = tiles(from.shape, to.shape);
  Slice slice{Shape(grid.size()), Shape(grid.size())};
  Pad pad{Shape(grid.size(), 0), Shape(grid.size(), 0), padding_code(from.type)};
  bool ragged = false;
  for (auto d = std::ssize(grid); d-- > 0;) {
    slice.origin[d] = index % grid[d] * to.shape[d];
    index /= grid[d];
    slice.shape[d] = std::min(to.shape[d], from.shape[d] - slice.origin[d]);
    pad.after[d] = to.shape[d] - slice.shape[d];
    ragged = ragged || pad.after[d] > 0;
  }
  std::vector<Transform> out = {slice};
  if (ragged) out.emplace_back(pad);
  if (from.type != to.type) out.emplace_back(ConvertTo{to.type});
  if (map) out.emplace_back(MapTo{*map});
  return out;
}

TileMove schedule_move(LevelTile from, LevelTile to, const LevelTile& piece, const Hint& hint) {
  LADDER_REQUIRE(from.shape.size() == to.shape.size() && to.shape.size() == piece.shape.size(),
                 "tiles ", to_string(from.shape), ", ", to_string(to.shape), " and ",
                 to_string(piece.shape));
  for (std::size_t d = 0; d < to.shape.size(); ++d) {
    LADDER_REQUIRE(to.shape[d] % piece.shape[d] == 0, "pieces ", to_string(piece.shape),
                   " do not divide a tile ", to_string(to.shape));
  }
  const std::int64_t run_bits = hint.run_bytes() * 8, bits = to.type.element->bits;
  TileMove move{std::move(from), std::move(to), {}};
  // A piece as wide as the tile is already made of whole rows; one of other runs is folded.
  const bool runs = piece.shape.back() * bits == run_bits;
  if (!runs && run_bits % bits == 0 && count(piece.shape) % (run_bits / bits) == 0) {
    move.map = piece_map(move.to.shape, piece.shape, run_bits / bits);
  }
  return move;
}

IndexMap piece_map(const Shape& tile, const Shape& piece, std::int64_t run) {
  LADDER_REQUIRE(tile.size() == 2 && piece.size() == 2, "pieces ", to_string(piece), " of a tile ",
                 to_string(tile));
  return index_map(tile, [&](const IndexExprs& x) {
    const auto number = x[0] / piece[0] * (tile[1] / piece[1]) + x[1] / piece[1];
    const auto place = x[0] % piece[0] * piece[1] + x[1] % piece[1];
    return IndexExprs{number, place / run, place % run};
  });
}

TileMove read_piece(const TileMove& stored, LevelTile piece) {
  LADDER_REQUIRE(stored.map.has_value(), "tiles of ", stored.to.level, " are stored row-major");
  const Shape shape = stored.map->shape();
  TileMove move{{stored.to.level, stored.to.type, shape},
                {piece.level, piece.type, {1, shape[1], shape[2]}},
                {}};
  const Shape to = piece.shape;
  // Runs of one piece, row-major: the flattened piece.
  move.map = index_map({1, shape[1], shape[2]}, [&](const IndexExprs& x) {
    const auto place = x[1] * shape[2] + x[2];
    return IndexExprs{place / to[1], place % to[1]};
  });
  return move;
}

ViewMap view_of_a(const MatmulForm& form) { return view(form, form.expr.a, form.i); }
ViewMap view_of_b(const MatmulForm& form) { return view(form, form.expr.b, form.j); }

std::string to_string(const TileMove& move) {
  std::ostringstream out;
  out << move.from.level << ' ' << to_string(move.from.type) << ' ' << to_string(move.from.shape)
      << " to " << move.to.level << ' ' << to_string(move.to.type) << ' '
      << to_string(move.to.shape);
  if (move.map) out << " as " << to_string(move.map->shape());
  out << ": " << move.pieces() << (move.pieces() == 1 ? " piece" : " pieces");
  for (const Transform& step : move.steps(0)) out << "\n  " << to_string(step);
  return out.str();
}

}  // namespace ladder
