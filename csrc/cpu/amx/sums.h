// SPDX-License-Identifier: Apache-2.0
//
// Sums of 64 rows by 16 tokens outside of tile registers, and what becomes of them.
#pragma once

#include "cpu/amx/tiles.h"
#include "cpu/avx512_bf16/panel.h"

namespace ladder::cpu::amx {
namespace {

constexpr int kPanels = 4;              ///< of 16 rows
constexpr int kTall = kPanels * kSide;  ///< rows of a tile of the driver

/// [panel][row][token] to [token][panel][row].
inline void transpose_sums(float* y) {
  alignas(64) float from[kTall * kSide];
  __builtin_memcpy(from, y, sizeof from);
  for (int panel = 0; panel < kPanels; ++panel) {
    __m512i v[kSide];
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) v[i] = _mm512_load_si512(from + (panel * kSide + i) * kSide);
    avx512_bf16::transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) _mm512_store_si512(y + i * kTall + panel * kSide, v[i]);
  }
}

}  // namespace
}  // namespace ladder::cpu::amx
