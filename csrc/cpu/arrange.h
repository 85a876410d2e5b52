// SPDX-License-Identifier: Apache-2.0
//
// x in the order of columns and tokens that the kernels of a weight read.
#pragma once

#include <cstdint>

#include "base/parallel.h"
#include "cpu/job.h"
#include "cpu/linear.h"

namespace ladder::cpu {

/// Tokens that lie together with Kernels::arrange_tile.
inline constexpr std::int64_t kTogether = 16;

inline std::int64_t size_of(Scalar dtype) { return dtype == Scalar::f32 ? 4 : 2; }

/// x as Kernels::multiply reads it, [m][stride]; room for m rounded up to kTogether tokens.
Buffer arrange(const Weight& weight, const Matrix& x, const Parallel& parallel);
/// x as Panels::multiply reads it, of passes of `most` tokens each, [m][padded_k] in all.
Buffer arrange(const Weight& weight, const Panels& panels, const Matrix& x, std::int64_t most,
               const Parallel& parallel);

}  // namespace ladder::cpu
