// SPDX-License-Identifier: Apache-2.0
//
// Kernels that quantise a weight with one scale for the whole matrix, over the whole device, to the
// bit as cpu/quantize.h does. They follow each other on a stream:
//
//   extent                      the least and the greatest weight of each thread block
//   errors, choose   a phase    squared errors of the phase's candidates, then the best of them
//   codes                       codes, scale, zero point and second scale
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "types/ttype.h"

namespace ladder::cuda {

/// Whether one scale of `type` is that of a whole matrix: these kernels quantise it, quantize()
/// (codegen/cuda/quantize.h) all others.
bool is_of_tensor(const TType& type);

/// How the kernels for a weight [n, k] are started. All but choose have blocks of 256 threads.
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
/// Throws Unsupported for 2^31 weights and more.
TensorLaunch tensor_launch(const TType& type, std::int64_t n, std::int64_t k, bool search);

/// extent(const float* weight, float* ends, u32 count, u32 parts): `ends` is [parts][2].
std::string tensor_extent_source();

/// errors(const float* weight, const u32* found, const float* ends, const State* state, double*
/// sums, u32 count, u32 parts, u32 first, u32 last): `sums` [segments][steps of the first phase of
/// a search]. `found` is what measure() left. Not started for a phase without steps. Throws as
/// quantize_source() does.
std::string tensor_errors_source(const TType& type);

/// choose(const u32* found, const float* ends, const double* sums, State* state, u32 parts, u32
/// segments, u32 first, u32 last): one block of 32 threads. Begins anew where `first` is 0.
std::string tensor_choose_source(const TType& type);
/// The State that it leaves for later phases and for codes().
struct TensorState {
  double least_error;
  float scale, zero, middle;
};

/// codes(const float* weight, const u32* found, const State* state, u8* to, void* scales, void*
/// zeros, float* scale2, u32 count, u32 parts): what quantize() stores.
std::string tensor_codes_source(const TType& type);

}  // namespace ladder::cuda
