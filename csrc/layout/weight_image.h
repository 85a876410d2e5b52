// SPDX-License-Identifier: Apache-2.0
//
// The weight image: how a device with tensor cores keeps a weight matrix [N, K] of b-bit codes.
//
//     [N / 64][K / 64][b chunks][32 lanes][16 bytes]
//
// A block of 64 x 64 codes is 512 b contiguous bytes, exactly b bits per code, and every load is
// 16 bytes per lane at consecutive addresses, for each b from 1 to 8. Inside a block, lane l owns
// what the tensor-core instruction wants from it: with g = l / 4 and t = l % 4, the four row units
// u hold rows 16 u + g + 8 (r & 1) and columns 16 s + 8 (r >> 1) + 2 t + {0, 1} for k-step s and
// fragment register r, which is the A operand of m16n8k16 and, per warp, of wgmma m64k16. Pair
// 4 s + r of the unit is placed by `bit_plan(b)`; unit u is words u b to u b + b - 1 of the lane.
//
// For operands of 8 bits the geometry is the same, and the fragments are those of the k32
// instructions, m16n8k32 and wgmma m64k32: k-step s of two, register r of four hold rows
// 16 u + g + 8 (r & 1) and columns 32 s + 16 (r >> 1) + 4 t + {0, 1, 2, 3}, one code per byte.
// `operand_bits`, 16 or 8, says which; other values are refused with Unsupported.
//
// Scales follow the same lanes: [groups][N / 64][8][8], element [g][j] for row g + 8 j of the
// block, so a lane loads the scales of all its rows at once.
//
// N and K are padded to multiples of 64 with a code and a scale that the caller gives.
#pragma once

#include <cstdint>

#include "base/integers.h"
#include "layout/layout.h"

namespace ladder {

constexpr std::int64_t kBlock = 64;  ///< rows and columns of a block
constexpr int kLanes = 32;
constexpr int kUnits = 4;                ///< row units of 16 in a block
constexpr std::int64_t kChunkWords = 4;  ///< of a lane, which one load takes

/// Which of the two rows of a unit that a lane has: codes of one parity may lie at other offsets.
constexpr std::int64_t row_parity(std::int64_t row) { return row / 8 % 2; }

/// Words of the image of an [n, k] matrix of `bits`-bit codes.
constexpr std::int64_t image_words(std::int64_t n, std::int64_t k, int bits) {
  return round_up(n, kBlock) / kBlock * (round_up(k, kBlock) / kBlock) * 128 * bits;
}

/// The register fragment a lane gets from one block: [64, 64] over 32 lanes, slots in the order
/// (unit, k-step, register, half or byte).
Layout block_fragment(int operand_bits = 16);

/// The rows of `units` whose zero points a lane holds, each `copies` times, as packed operands: [1,
/// 16 units, copies] over 32 lanes, each row in four lanes.
Layout zero_fragment(std::int64_t units = kUnits, std::int64_t copies = 2);

/// Word of the image and bit of that word where bit `bit` of the code at (row, column) lies.
struct ImagePlace {
  std::int64_t word;
  int bit;
};
ImagePlace image_place(std::int64_t k, int bits, std::int64_t row, std::int64_t column, int bit,
                       int operand_bits = 16);

/// Packs canonical rows (types/weight.h: a little-endian bit stream along K, rows padded to 32
/// bits) of an [n, k] matrix into `image`, image_words(n, k, bits) words. Padding holds `pad`.
void pack_image(const std::uint32_t* canonical, std::int64_t n, std::int64_t k, int bits,
                std::uint32_t pad, std::uint32_t* image, int operand_bits = 16);

/// The inverse, bit-exact; padding bits of the canonical rows come out 0.
void unpack_image(const std::uint32_t* image, std::int64_t n, std::int64_t k, int bits,
                  std::uint32_t* canonical, int operand_bits = 16);

}  // namespace ladder
