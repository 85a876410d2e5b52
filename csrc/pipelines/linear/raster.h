// SPDX-License-Identifier: Apache-2.0
//
// In which order CTAs take the tiles of a matrix: those that run at a time share rows of the weight
// and tokens, which L2 then has. Some tiles of tokens go together: neighbouring CTAs have the same
// rows and other tokens of these, then come the next rows, and after all rows the next tokens.
#pragma once

#include <cstdint>

#include "program/affine.h"
#include "schedule/route.h"

namespace ladder {

/// How many of `token_tiles` tiles of `tokens` go together: all, or a number of which
/// raster_tiles() are a multiple.
std::int64_t tiles_together(std::int64_t token_tiles, std::int64_t tokens);
/// `token_tiles`, or the few more that make whole groups. Tiles without tokens end at once.
std::int64_t raster_tiles(std::int64_t token_tiles, std::int64_t tokens);

/// How many items of a table of experts go together, each of at most `rows` rows: a power of two.
std::int64_t items_together(std::int64_t rows);

/// Of the CTA's tile: the first of its rows, and of its tokens, each tile of which has `factor`.
Affine raster_row(const CtaGrid& grid, std::int64_t factor);
Affine raster_token(const CtaGrid& grid, std::int64_t factor);

}  // namespace ladder
