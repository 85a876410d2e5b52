// SPDX-License-Identifier: Apache-2.0
// Every tile of rows and tokens is some CTA's, and only one's; those that run at a time share them.
#include "pipelines/linear/raster.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "program/program.h"

namespace ladder {
namespace {

std::int64_t value(const Affine& affine, std::int64_t tile) {
  std::int64_t sum = affine.constant;
  for (const auto& term : affine.terms) {
    EXPECT_EQ(term.variable, kTile);
    sum += term.at(tile);
  }
  return sum;
}

CtaGrid grid(std::int64_t tiles, std::int64_t token_tiles, std::int64_t tokens) {
  const auto all = raster_tiles(token_tiles, tokens);
  return {.tiles = tiles, .token_tiles = all, .splits = 1, .together = tiles_together(all, tokens)};
}

TEST(Raster, gives_each_tile_to_one_cta) {
  for (const std::int64_t tokens : {32, 72, 128, 192, 256, 2048}) {
    for (const std::int64_t token_tiles : {1, 2, 3, 7, 8, 15, 16, 17, 43, 64}) {
      for (const std::int64_t tiles : {1, 2, 9}) {
        const CtaGrid all = grid(tiles, token_tiles, tokens);
        ASSERT_GE(all.token_tiles, token_tiles);
        EXPECT_LT(all.token_tiles, token_tiles + all.together) << "a whole group of none";
        EXPECT_EQ(all.token_tiles % all.together, 0);
        std::set<std::pair<std::int64_t, std::int64_t>> found;
        for (std::int64_t tile = 0; tile < all.count(); ++tile) {
          const auto row = value(raster_row(all, 4), tile);
          const auto token = value(raster_token(all, tokens), tile);
          EXPECT_EQ(row % 4 + token % tokens, 0);
          EXPECT_LT(row / 4, tiles);
          EXPECT_LT(token / tokens, all.token_tiles);
          EXPECT_TRUE(found.emplace(row, token).second) << row << ", " << token << " twice";
        }
      }
    }
  }
}

TEST(Raster, has_few_tiles_of_tokens_under_way) {
  const CtaGrid all = grid(32, 64, 128);
  std::set<std::int64_t> rows, tokens;
  for (std::int64_t tile = 0; tile < 128; ++tile) {
    rows.insert(value(raster_row(all, 1), tile));
    tokens.insert(value(raster_token(all, 1), tile));
  }
  EXPECT_EQ(rows.size(), 16u);
  EXPECT_EQ(tokens.size(), 8u);
}

TEST(Raster, leaves_few_tokens_together) {
  EXPECT_EQ(tiles_together(12, 128), 12);
  EXPECT_EQ(tiles_together(16, 128), 8);
  EXPECT_EQ(raster_tiles(12, 128), 12);
  EXPECT_EQ(raster_tiles(43, 192), 45);
}

}  // namespace
}  // namespace ladder
