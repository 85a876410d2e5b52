// SPDX-License-Identifier: Apache-2.0
//
// The eight tile registers of AMX as kernels here use them: 32 rows of the weight by 16 or 32 tokens.
//
//   sums 0 to 3    [row][token]  half r of the rows by half h of the tokens is tile 2 r + h
//   weights 4, 5   [row][bytes of columns]
//   tokens 6, 7    [columns / 4 bytes][token][4 bytes]
//
// The time of a product is that of its rows, so 16 of them are multiplied whatever the tokens are.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ladder::cpu::amx {
namespace {

constexpr int kSide = 16;           ///< rows, or tokens, of a tile
constexpr int kRowBytes = 4 * kSide;  ///< of a full tile
constexpr int kTileBytes = kSide * kRowBytes;

/// The tiles have shapes while this lives; without them context switches need not save the tiles.
/// Other code of the thread that uses tiles is not called meanwhile.
class Tiles {
 public:
  /// Products take `bytes` of columns, a multiple of 4 up to 64.
  explicit Tiles(int bytes) {
    Shapes shapes;
    const auto set = [&](int tile, int rows, int row_bytes) {
      shapes.rows[tile] = static_cast<std::uint8_t>(rows);
      shapes.row_bytes[tile] = static_cast<std::uint16_t>(row_bytes);
    };
    for (int tile = 0; tile < 4; ++tile) set(tile, kSide, kRowBytes);
    for (int tile = 4; tile < 6; ++tile) set(tile, kSide, bytes);
    for (int tile = 6; tile < 8; ++tile) set(tile, bytes / 4, kRowBytes);
    // Not the intrinsic: to g++ 12 that reads 8 bytes only, so that the others need not be written.
    asm volatile("ldtilecfg %0" : : "m"(shapes));
  }
  ~Tiles() { asm volatile("tilerelease" ::); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  /// What ldtilecfg reads.
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
};

}  // namespace
}  // namespace ladder::cpu::amx
