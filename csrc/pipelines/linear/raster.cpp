// SPDX-License-Identifier: Apache-2.0
#include "pipelines/linear/raster.h"

#include <algorithm>
#include <bit>

#include "base/integers.h"

namespace ladder {
namespace {

// Tokens that go together. Some 130 CTAs of 256 rows x 128 tokens then have 16 tiles of rows and 8
// of tokens: weights of 4 bits and activations of 16 are as many bytes.
constexpr std::int64_t kTokensTogether = 1024;
// Rows of experts that go together. Tables have whole groups, the last in part without rows. Items
// of fewer rows are of launches that read an expert's weight once, and CTAs without rows cost them
// more.
constexpr std::int64_t kRowsTogether = 512, kFewestRows = 64;

}  // namespace

std::int64_t tiles_together(std::int64_t token_tiles, std::int64_t tokens) {
  const auto together = std::max<std::int64_t>(kTokensTogether / tokens, 1);
  return token_tiles < 2 * together ? token_tiles : together;
}

std::int64_t raster_tiles(std::int64_t token_tiles, std::int64_t tokens) {
  return round_up(token_tiles, tiles_together(token_tiles, tokens));
}

std::int64_t items_together(std::int64_t rows) {
  if (rows < kFewestRows) return 1;
  const auto most = static_cast<std::uint64_t>(std::max<std::int64_t>(kRowsTogether / rows, 1));
  return static_cast<std::int64_t>(std::bit_floor(most));
}

Affine raster_row(const CtaGrid& grid, std::int64_t factor) {
  Affine out = Affine::of(kTile, factor, grid.together * grid.items);
  if (grid.together < grid.token_tiles) out.terms.front().modulus = grid.tiles;
  return out;
}

Affine raster_token(const CtaGrid& grid, std::int64_t factor) {
  if (grid.token_tiles == 1) return 0;
  Affine out = times(remainder(Affine::of(kTile), grid.together), factor);
  if (grid.together == grid.token_tiles) return out;
  return Affine::of(kTile, grid.together * factor, grid.together * grid.tiles) + out;
}

}  // namespace ladder
