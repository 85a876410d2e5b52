// SPDX-License-Identifier: Apache-2.0
#include "program/access.h"

#include "layout/weight_image.h"

namespace ladder {

Affine origin_of(const View& view, const std::vector<Affine>& at) {
  Affine origin = view.offset;
  for (std::size_t d = 0; d < at.size(); ++d) origin = origin + times(at[d], view.strides[d]);
  return origin;
}

std::array<std::int64_t, 5> place_in_chunks(const std::int64_t* at, std::int64_t words) {
  const auto word = at[2] * words + at[4];
  return {at[0], at[1], word / kChunkWords, at[3], word % kChunkWords};
}

std::vector<bool> guarded_dimensions(const Program& program, const Layout& tile, const View& view,
                                     const std::vector<Affine>& at) {
  std::vector<bool> guarded(at.size());
  for (std::size_t d = 0; d < at.size(); ++d) {
    guarded[d] = view.extents[d] == kTokens ||
                 range_of(program, at[d]).high + tile.shape[d] > view.extents[d];
  }
  return guarded;
}

std::int64_t piece_width(const Layout& tile, Scalar scalar, const View& view, const Affine& origin,
                         const std::vector<bool>& guarded) {
  const auto rank = view.extents.size();
  const auto slots = tile.slot_count();
  std::vector<std::vector<std::int64_t>> coordinates;
  std::vector<std::int64_t> offsets;
  for (std::int64_t s = 0; s < slots; ++s) {
    coordinates.push_back(tile(0, s));
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank; ++d) offset += coordinates.back()[d] * view.strides[d];
    offsets.push_back(offset);
  }
  const auto fits = [&](std::int64_t width) {
    if (slots % width != 0 || !multiple_of(origin, width)) return false;
    for (const Digit& digit : tile.threads) {
      if (digit.stride * view.strides[digit.dim] % width != 0) return false;
    }
    for (std::int64_t s = 0; s < slots; ++s) {
      const auto first = s / width * width;
      if (offsets[first] % width != 0 || offsets[s] != offsets[first] + s % width) return false;
      for (std::size_t d = 0; d < rank; ++d) {
        // A border may not cut a piece.
        if (coordinates[s][d] != coordinates[first][d] && guarded[d] &&
            (view.extents[d] == kTokens || view.extents[d] % width != 0)) {
          return false;
        }
      }
    }
    return true;
  };
  std::int64_t width = 16 / bytes_of(scalar);
  while (!fits(width)) width /= 2;
  return width;
}

}  // namespace ladder
