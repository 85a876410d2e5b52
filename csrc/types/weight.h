// SPDX-License-Identifier: Apache-2.0
//
// The canonical stored weight, as docs/format.md states it: row-major, exactly b bits per code, a
// little-endian bit stream along K, each row padded to 32 bits.
#pragma once

#include <cstdint>

#include "types/ttype.h"

namespace ladder {

/// 32-bit words in one row of `k` codes of `bits` bits.
constexpr std::int64_t row_words(std::int64_t k, int bits) { return (k * bits + 31) / 32; }

/// Second scales that multiply sums: none, one, or one for each of `n` rows.
inline std::int64_t second_scales(const TType& type, std::int64_t n) {
  return !type.has_scale_of_sums() ? 0 : type.scale2_of_rows ? n : 1;
}

/// A weight matrix [n, k] in memory that somebody else owns. Pointers of absent parts are null.
struct WeightView {
  const TType* type;
  std::int64_t n, k;
  const std::uint32_t* codes;  ///< [n, row_words(k, bits)]
  /// [block_rows(n), groups(k)] in the scale's format; formats under 16 bits one code per byte.
  const void* scales;
  /// integer: uint8 [block_rows, groups]; quantized: uint32 [block_rows, row_words(groups, bits)];
  /// original, rescale: [block_rows, groups] in the scale's format.
  const void* zeros;
  const float* scale2;        ///< [second_scales(type, n)]
  const std::int32_t* g_idx;  ///< [k]: the group of each column; null: column / block.columns
  /// [n, superblocks(k), scales_of_superblock()] in the format of scale2.
  const void* seconds = nullptr;
};

/// Packs `codes` [n, k], one per byte, into `words` [n, row_words(k, bits)]; padding bits are 0.
/// Throws InvalidArgument naming row, column and both widths for a code that does not fit.
void pack_codes(const std::uint8_t* codes, std::int64_t n, std::int64_t k, int bits,
                std::uint32_t* words);

/// The inverse of pack_codes.
void unpack_codes(const std::uint32_t* words, std::int64_t n, std::int64_t k, int bits,
                  std::uint8_t* codes);

/// Writes rows [row_begin, row_end) of the value of `weight` to `out` [rows, k], row-major, the
/// products taken in float32 in the order decode - zero, * scale, * scale2; those of superblocks
/// first, scale2 * scale and scale2 * zero.
void dequantize_rows(const WeightView& weight, std::int64_t row_begin, std::int64_t row_end,
                     float* out);

}  // namespace ladder
