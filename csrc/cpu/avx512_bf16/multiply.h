// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels.h"

namespace ladder::cpu::avx512_bf16 {

/// The kernels on pairs for weights whose values are bfloat16 numbers; null for all others.
const Kernels* pairs(const Job& job);

/// Kernels::multiply on pairs.
void multiply(const Job& job, const Rows* quads, int count, const void* tiles, const void* x,
              std::int64_t tokens, float* y, std::int64_t y_stride);

}  // namespace ladder::cpu::avx512_bf16
