// SPDX-License-Identifier: Apache-2.0
//
// Kernels that move a weight between its canonical form (types/weight.h) and its image
// (layout/weight_image.h) on the device. Written from the same bit plan as the host functions
// pack_image and unpack_image, with which they agree to the bit.
#pragma once

#include <cstdint>
#include <string>

namespace ladder::cuda {

/// What a block of threads takes: 64 rows by this many blocks of 64 columns.
struct ImageTile {
  int threads, blocks;
};
ImageTile pack_tile(int bits);        ///< and unpack
ImageTile dequantize_tile(int bits);  ///< dequantize.h

/// pack(const u32* canonical, u32* image, u32 n, u32 k, u32 pad, u32 flip): `flip` is XORed to
/// every code, `pad` is what padding holds.
std::string pack_source(int bits);

/// unpack(const u32* image, u32* canonical, u32 n, u32 k, u32 flip).
std::string unpack_source(int bits);

}  // namespace ladder::cuda
