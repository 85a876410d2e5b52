// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels.h"

namespace ladder::cpu::avx512_bf16 {

/// The kernels on pairs for weights whose values are bfloat16 numbers; null for all others.
const Kernels* pairs(const Job& job);

/// kRows rows, to their place in a panel of 16: for each vector of the rows those of all 16.
void decode_panel(const Job& job, const Rows& rows, void* out);

/// Kernels::multiply on pairs.
void multiply(const Job& job, const Rows* quads, int count, const void* tiles, const void* x,
              std::int64_t tokens, float* y, std::int64_t y_stride);

}  // namespace ladder::cpu::avx512_bf16
