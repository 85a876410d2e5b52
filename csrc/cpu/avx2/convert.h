// SPDX-License-Identifier: Apache-2.0
//
// The functions of Kernels that are not loops over weights; contracts in cpu/kernels.h.
#pragma once

#include "cpu/kernels.h"

namespace ladder::cpu::avx2 {

void widen(const void* from, Scalar dtype, std::int64_t count, float* to);
void narrow(const float* from, std::int64_t count, Scalar dtype, void* to);
void multiply(const Job& job, const Rows* quads, int count, const void* tiles, const void* x,
              std::int64_t tokens, float* y, std::int64_t y_stride);

}  // namespace ladder::cpu::avx2
