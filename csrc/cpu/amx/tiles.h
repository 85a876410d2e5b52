// SPDX-License-Identifier: Apache-2.0
//
// The eight tile registers of AMX as kernels here use them, for 16 rows of the weight by 16 tokens:
//
//   sums 0 to 3    [row][token]
//   weights 4, 5   [row][bytes of columns]
//   tokens 6, 7    [columns / 4 bytes][token][4 bytes]
//
// The time of a product is that of its rows, so 16 of them are multiplied whatever the tokens are.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

namespace ladder::cpu::amx {
namespace {

constexpr int kSide = 16;             ///< rows, or tokens, of a tile
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
    for (const int tile : {0, 1, 2, 3}) set(tile, kSide, kRowBytes);
    for (const int tile : {4, 5}) set(tile, kSide, bytes);
    for (const int tile : {6, 7}) set(tile, bytes / 4, kRowBytes);
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

// The intrinsics of g++ 12 take numbers of registers as text, so that no template can choose them.

template <int kTile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
/// Rows `stride` bytes apart.
template <int kTile>
inline void load_tile(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
}
template <int kTile>
inline void store_tile(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
}
/// sums += weights · tokens, bytes. kSigned: those of the weights have a sign, as those of tokens.
template <int kSums, int kWeights, int kTokens, bool kSigned>
inline void multiply_bytes() {
  if constexpr (kSigned)
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0"
                 :
                 : "i"(kSums), "i"(kWeights), "i"(kTokens));
  else
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0"
                 :
                 : "i"(kSums), "i"(kWeights), "i"(kTokens));
}
/// Likewise of pairs of bfloat16.
template <int kSums, int kWeights, int kTokens>
inline void multiply_pairs() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
               :
               : "i"(kSums), "i"(kWeights), "i"(kTokens));
}

}  // namespace
}  // namespace ladder::cpu::amx
