// SPDX-License-Identifier: Apache-2.0
//
// How the lanes of a matrix instruction share 64 x 64 blocks of the weight image, as layouts over
// one warp (or wave) in rows, columns and tokens of the layer. An instruction sums over its columns
// in any order, and its rows may be any rows: a wave of 64 lanes takes eight rows of each of two
// blocks, all of one parity, and of 16 columns the four that the image has in one lane's word. So
// its lanes read the image that was made for 32. Waves of 32 lanes take two together what one of 64
// does; a lane has the words of two or four lanes of the image.
#pragma once

#include <cstdint>
#include <vector>

#include "device/instructions.h"
#include "layout/layout.h"
#include "layout/weight_image.h"

namespace ladder {

/// Words of codes that a lane has of `units` of 16 rows.
constexpr std::int64_t words_of_units(std::int64_t units, int bits) { return units * bits; }
/// They are whole chunks of the image, or equal parts of one: a layout says where (else LoadUnits).
constexpr bool has_chunks(std::int64_t units, int bits) {
  const auto words = words_of_units(units, bits);
  return words % kChunkWords == 0 || kChunkWords % words == 0;
}

class ImageFit {
 public:
  /// `units` of 16 rows of a warp: 1, 2 or 4 of a block, or for waves 8, which are two blocks, of
  /// 64 threads.
  /// Throws Unsupported for an instruction whose lanes read the image in no way that is known.
  ImageFit(const MatrixInstruction& row, std::int64_t units);

  /// Warps that share a block along N.
  std::int64_t warps_of_block() const { return wave_ ? 1 : kUnits / units_; }
  /// One instruction has rows of both parities (row_parity); else of one.
  bool mixes_parities() const { return !wave_; }

  Layout a() const;                            ///< [1, rows, k]: one k-step
  Layout b(std::int64_t tokens) const;         ///< [1, tokens, k]
  Layout sums(std::int64_t tokens) const;      ///< [parts, rows, tokens]
  Layout zero_row() const;                     ///< [1, 16, k]: A of one instruction
  Layout zero_sum(std::int64_t tokens) const;  ///< [parts, 16, tokens]
  Layout zeros() const;  ///< [1, rows, 2 or 4]: each row of A as often as a word holds operands
  /// Words of a block's column: [blocks along N, 1, chunks, 32 lanes of the image, 4]; without
  /// has_chunks [blocks along N, 1, 1, 32 lanes, words].
  Layout words(int bits) const;
  /// Waves load these by a layout; else by LoadUnits.
  bool reads_chunks(int bits) const;
  /// The same tile for warps_of_block() threads: the words of each.
  Layout warps_of_words(int bits) const;
  /// Scales or zero points of `groups`, of the rows of A or of sums: as loaded from [groups, blocks
  /// along N, 8, 4, 8], and by row: [groups, rows].
  Layout loaded(std::int64_t groups, bool of_a) const;
  Layout rows(std::int64_t groups, bool of_a) const;

 private:
  /// Of a wave: the columns that a lane has of each k-step, in words of the image.
  Layout of_columns(std::int64_t rows, std::vector<Digit> lanes, std::vector<Digit> slots) const;

  /// Of a wave: a lane has the sums of the row of each unit and parity of which it has A.
  bool one_row() const { return row_.fragment == Fragment::wave_lanes; }

  const MatrixInstruction& row_;
  const std::int64_t units_, columns_;
  const bool wave_, few_lanes_;
};

}  // namespace ladder
