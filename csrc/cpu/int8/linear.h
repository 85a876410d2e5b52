// SPDX-License-Identifier: Apache-2.0
//
// y = x8 · value(w)ᵀ + bias + residual, x8 being x in 8 bits: integer products on any CPU, straight
// from the canonical weight.
#pragma once

#include "cpu/linear.h"

namespace ladder::cpu::int8 {

/// Columns that share a scale of x: 128 where groups of the weight are whole multiples of that or
/// one for a row, else 32 (of which groups of 8 and 16 columns are parts).
std::int64_t x_block(const TType& type, std::int64_t k);

/// y[m, n] = sum_k x8[m, k] * value(weight)[n, k] + bias[n] + residual[m, n]. x8 is the multiple of
/// its block's largest magnitude / 127 that is nearest to x, ties to even; a block below 2^-100 is
/// zeros, and one with a number that is not finite makes y so. Within a block and a group products
/// are summed as integers, without rounding; the sums are scaled and summed in float32.
/// Values of codes that are no integers times a power of two are rounded: see codes_of.
/// Arguments as cpu::linear. x8 does not depend on m, n or isa.
/// Throws Unsupported for a type that check_type refuses and for g_idx.
void linear(const WeightView& weight, const Matrix& x, const Addends& addends, const Matrix& y,
            Isa isa, const Parallel& parallel);

}  // namespace ladder::cpu::int8
