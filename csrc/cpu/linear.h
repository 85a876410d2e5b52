// SPDX-License-Identifier: Apache-2.0
//
// The embedded default: y = x · value(w)ᵀ + bias + residual on any CPU, straight from the canonical
// weight.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "types/scalar_enum.h"
#include "types/weight.h"

namespace ladder::cpu {

/// Instruction sets that have kernels of their own, narrowest first.
enum class Isa {
  generic,       ///< plain C++
  avx2,          ///< x86-64-v3: AVX2, FMA, F16C, BMI2
  avx_vnni,      ///< AVX2 with dot products of bytes (Alder Lake, Zen 5 and later): for x of 8 bits
  avx512,        ///< AVX-512 F, BW, DQ, VL and VBMI (Ice Lake, Zen 4 and later)
  avx512_bf16,   ///< the same with products of bfloat16 pairs (Cooper Lake, Zen 4 and later)
  amx,           ///< the same with VNNI and with tile registers for bfloat16 and for x of 8 bits
                 ///< (Sapphire Rapids and later)
  neon,          ///< what every aarch64 processor has: ARMv8-A with Advanced SIMD
  neon_dotprod,  ///< the same with sdot for x of 8 bits (Cortex-A76, Neoverse N1, Apple A11 and
                 ///< later)
  neon_i8mm,     ///< the same with smmla for x of 8 bits (Neoverse V1 and N2, Apple M2 and later)
};

/// Those with kernels in this build, narrowest first: those of the processor's family.
std::vector<Isa> built_isas();
/// Those that this machine can run, narrowest first; never empty.
std::vector<Isa> available_isas();
std::string_view name(Isa isa);

/// A float matrix that somebody else owns, rows contiguous, `stride` elements from row to row.
struct Matrix {
  void* data;
  Scalar dtype;
  std::int64_t rows, columns, stride;
};

/// y = x · wᵀ for float32 matrices x [m, k], w [n, k] and y [m, n], all rows contiguous: the
/// matrix product of a well-kept library (torch's), used on decoded tiles when M is large.
using Gemm = std::function<void(const float* x, std::int64_t m, std::int64_t k, const float* w,
                                std::int64_t n, float* y, std::int64_t y_stride)>;

/// What is added to a product, in float32 before it is rounded.
struct Addends {
  const void* bias = nullptr;      ///< [n] in the dtype of x, or null
  const void* residual = nullptr;  ///< [m, n] in the dtype and with the stride of y, or null
};

/// y[m, n] = sum_k x[m, k] * value(weight)[n, k] + bias[n] + residual[m, n], summed in float32.
/// x and y have the same dtype; y [m, n].
/// Any m (0 included), n, k, type and block; `isa` must be one of available_isas().
/// Error: within ladder.testing.bound; exact when every partial sum is an integer below 2^24.
void linear(const WeightView& weight, const Matrix& x, const Addends& addends, const Matrix& y,
            Isa isa, const Parallel& parallel, const Gemm& gemm);

}  // namespace ladder::cpu
