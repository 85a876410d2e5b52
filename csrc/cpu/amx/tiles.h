// SPDX-License-Identifier: Apache-2.0
//
// The eight tile registers of AMX as kernels here use them: 16 or 32 tokens by 32 rows of the weight.
//
//   sums 0 to 3     [token][row]  half h of the tokens by half r of the rows is tile 2 h + r
//   tokens 4, 5     [token][bytes of columns]
//   weights 6, 7    [columns / 4 bytes][row][4 bytes]
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ladder::cpu::amx {
namespace {

constexpr int kSide = 16;  ///< tokens, or rows of the weight, of a tile

/// What ldtilecfg reads.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};  ///< of a row of each tile
  std::uint8_t rows[16] = {};
};

/// The tiles have a shape while this lives; without it they cost context switches nothing. Other
/// code of the thread that uses tiles is not called meanwhile.
class Tiles {
 public:
  /// `first` and `second` tokens of the halves, 0 to 16; `bytes` of columns that a product takes.
  Tiles(int first, int second, int bytes) {
    Shapes shapes;
    const auto set = [&](int tile, int rows, int row_bytes) {
      shapes.rows[tile] = static_cast<std::uint8_t>(rows);
      shapes.bytes[tile] = static_cast<std::uint16_t>(rows == 0 ? 0 : row_bytes);
    };
    for (int half = 0; half < 2; ++half) {
      const int tokens = half == 0 ? first : second;
      set(2 * half, tokens, 4 * kSide);
      set(2 * half + 1, tokens, 4 * kSide);
      set(4 + half, tokens, bytes);
      set(6 + half, bytes / 4, 4 * kSide);
    }
    // Not the intrinsic: to g++ 12 it reads 8 bytes, and the others need not be written.
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~Tiles() { asm volatile("tilerelease" ::); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

}  // namespace
}  // namespace ladder::cpu::amx
