// SPDX-License-Identifier: Apache-2.0
//
// Kernels that quantise a weight on the device, to the bit as cpu/quantize.h does: the same rules
// (types/scale_search.h), every operation an intrinsic that rounds once (__fmul_rn and its like,
// which no compiler contracts), the same order of sums.
#pragma once

#include <cstdint>
#include <string>

#include "types/ttype.h"

namespace ladder::cuda {

/// measure(const float* weight, u32* found, u32 n, u32 k): the bits of the greatest magnitude,
/// which are 0x7f800000 or more where a weight is not finite, into `found`, zero before. Up to
/// kMeasureBlocks blocks of 256 threads, one for every 256 weights of a smaller matrix.
std::string measure_source();
inline constexpr unsigned kMeasureBlocks = 1024;

/// How the kernel of a type is started. Of types with one scale for a whole matrix, see
/// codegen/cuda/quantize_tensor.h.
struct QuantizeLaunch {
  std::int64_t blocks;
  unsigned threads;
};
QuantizeLaunch quantize_launch(const TType& type, std::int64_t n, std::int64_t k);

/// quantize(const float* weight, const u32* found, u8* codes, void* scales, void* zeros, float*
/// scale2, u32 n, u32 k, u32 search, u32 warps): codes one per byte [n, k]; scales, zeros and
/// scale2 as they are stored, but for zeros of kind quantized one per byte. `found` is what
/// measure() left, `warps` those of a block. Parts that `type` has not may be null.
/// Throws Unsupported for a format of scales that float32 has not the range of, InvalidArgument for
/// elements of more than 8 bits.
std::string quantize_source(const TType& type);

/// pack_rows(const u8* codes, u32* words, u32 n, u32 k): pack_codes (types/weight.h) of codes that
/// fit. A thread takes a word, a block 256 of one row: blocks are [words of a row / 256, rows], and
/// a block goes on to the row 65535 behind its own.
std::string pack_rows_source(int bits);
inline constexpr std::int64_t kMostRows = 65535;

}  // namespace ladder::cuda
