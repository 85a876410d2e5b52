// SPDX-License-Identifier: Apache-2.0
//
// Kernels of weights beside the products: between the canonical form (types/weight.h), the image
// (layout/weight_image.h) and dense values, and from floats to codes. As tables of functions that
// write their sources in the language of a target.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/weight.h"
#include "types/ttype.h"

namespace ladder {

/// What a block of threads takes: 64 rows by this many blocks of 64 columns.
struct ImageTile {
  int threads, blocks;
};

/// To the bit as the host functions pack_image and unpack_image do.
struct ImageKernels {
  ImageTile (*pack_tile)(int bits);  ///< and unpack
  ImageTile (*dequantize_tile)(int bits);
  /// pack(const u32* canonical, u32* image, u32 n, u32 k, u32 pad, u32 flip): `flip` is XORed to
  /// every code, `pad` is what padding holds.
  std::string (*pack)(int bits);
  /// unpack(const u32* image, u32* canonical, u32 n, u32 k, u32 flip).
  std::string (*unpack)(int bits);
  /// permute(const u32* from, u32* to, const int* columns, u32 n, u32 k): canonical rows of codes
  /// of 1 to 8 bits; column j of `to` is column columns[j] of `from`. A block of 256 threads takes
  /// 64 rows and as many words.
  std::string (*permute)(int bits);
  /// dequantize(const u32* image, const void* scales, const void* zeros, const float* scale2,
  /// const int* columns, T* out, u32 n, u32 k): the values [n, k] of `weight`, each
  /// step of docs/format.md rounded to f32, the result once to `out`. Column j of the image goes to
  /// column columns[j], or to j where `columns` is null. Parts that `weight` has not may be null.
  /// A block of threads takes dequantize_tile(weight.bits).
  std::string (*dequantize)(const Weight& weight, Scalar out);
};

/// How the kernel that quantises a type is started.
struct QuantizeLaunch {
  std::int64_t blocks;
  unsigned threads;
};

/// How the kernels that quantise a weight [n, k] with one scale for the whole matrix are started.
/// All but choose have blocks of 256 threads.
struct TensorLaunch {
  /// Steps [first, last) of the search. Fine steps are around the best coarse step, so that a
  /// search has two phases.
  struct Phase {
    unsigned first, last;
  };
  std::uint32_t count;       ///< weights
  unsigned parts, segments;  ///< blocks of extent and codes, and segments of kSegmentWeights
  unsigned error_blocks;     ///< of errors: a warp has a segment
  std::vector<Phase> phases;
  std::int64_t sums;  ///< doubles; 0: errors is not started
};

/// What choose() leaves for later phases and for codes().
struct TensorState {
  double least_error;
  float scale, zero, middle;
};

/// Blocks of measure(), at most, and of rows of pack_rows().
inline constexpr unsigned kMeasureBlocks = 1024;
inline constexpr std::int64_t kMostRows = 65535;

/// To the bit as cpu/quantize.h does.
struct QuantizeKernels {
  /// measure(const float* weight, u32* found, u32 n, u32 k): the bits of the greatest magnitude,
  /// which are 0x7f800000 or more where a weight is not finite, into `found`, zero before. Up to
  /// kMeasureBlocks blocks of 256 threads, one for every 256 weights of a smaller matrix.
  std::string (*measure)();
  /// measure_rows(const float* weight, u32* found, u32 n, u32 k): the same of each row, [n], by a
  /// warp each; blocks have 256 threads.
  std::string (*measure_rows)();
  /// pack_rows(const u8* codes, u32* words, u32 n, u32 k): pack_codes (types/weight.h) of codes
  /// that fit. A thread takes a word, a block 256 of one row: blocks are [words of a row / 256,
  /// rows], and a block goes on to the row kMostRows behind its own.
  std::string (*pack_rows)(int bits);

  /// Whether one scale of `type` is that of a whole matrix: the kernels of the tensor below
  /// quantise it, quantize() all others.
  bool (*is_of_tensor)(const TType& type);

  QuantizeLaunch (*quantize_launch)(const TType& type, std::int64_t n, std::int64_t k);
  /// quantize(const float* weight, const u32* found, u8* codes, void* scales, void* zeros, float*
  /// scale2, u32 n, u32 k, u32 search, u32 warps): codes one per byte [n, k]; scales, zeros and
  /// scale2 as they are stored, but for zeros of kind quantized one per byte. `found` is what
  /// measure() left, or where rows have second scales measure_rows(), `warps` those of a block.
  /// Parts that `type` has not may be null. Throws Unsupported for a format of scales that float32
  /// has not the range of, InvalidArgument for elements of more than 8 bits.
  std::string (*quantize)(const TType& type);

  /// Throws Unsupported for 2^31 weights and more.
  TensorLaunch (*tensor_launch)(const TType& type, std::int64_t n, std::int64_t k, bool search);
  /// extent(const float* weight, float* ends, u32 count, u32 parts): the least and the greatest
  /// weight of each block, [parts][2].
  std::string (*tensor_extent)();
  /// errors(const float* weight, const u32* found, const float* ends, const State* state, double*
  /// sums, u32 count, u32 parts, u32 first, u32 last): squared errors of a phase's candidates,
  /// [segments][steps of the first phase of a search]. `found` is what measure() left. Not started
  /// for a phase without steps. Throws as quantize() does.
  std::string (*tensor_errors)(const TType& type);
  /// choose(const u32* found, const float* ends, const double* sums, State* state, u32 parts, u32
  /// segments, u32 first, u32 last): the best of them, by one block of 32 threads. Begins anew
  /// where `first` is 0. Leaves a TensorState.
  std::string (*tensor_choose)(const TType& type);
  /// codes(const float* weight, const u32* found, const State* state, u8* to, void* scales, void*
  /// zeros, float* scale2, u32 count, u32 parts): what quantize() stores.
  std::string (*tensor_codes)(const TType& type);
};

}  // namespace ladder
