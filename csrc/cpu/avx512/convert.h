// SPDX-License-Identifier: Apache-2.0
//
// The functions of Kernels that are not loops over weights; contracts in cpu/kernels.h.
#pragma once

#include "cpu/kernels.h"

namespace ladder::cpu::avx512 {

std::int64_t position(const Job& job, std::int64_t column);
void arrange(const Job& job, const void* x, Scalar dtype, void* out);
void widen(const void* from, Scalar dtype, std::int64_t count, float* to);
void narrow(const float* from, std::int64_t count, Scalar dtype, void* to);
void look_up(const Tables& tables, const std::uint8_t* from, std::int64_t count, float* to);
void gather(const float* values, std::int64_t size, const std::int32_t* index, std::int64_t count,
            float* to);
/// A piece of kRows rows, float32.
void decode(const Job& job, const Rows& rows, const Piece& piece, float* out);
void multiply(const Job& job, const Rows* quads, int count, const void* tiles, const void* x,
              std::int64_t tokens, float* y, std::int64_t y_stride);

}  // namespace ladder::cpu::avx512
