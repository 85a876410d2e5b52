// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstdint>

#include "cpu/quantize_kernels.h"

namespace {

/// How many of 16 ascending numbers are less.
std::int32_t count_less(const float* sixteen, float value) {
  const __m256 all = _mm256_set1_ps(value);
  const auto less = [&](const float* eight) {
    return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(eight), all, _CMP_LT_OQ));
  };
  return __builtin_popcount(static_cast<unsigned>(less(sixteen) | less(sixteen + 8) << 8));
}

/// How many of 256 ascending numbers are less: of 16 of them, then of the 16 behind the last less.
std::int32_t rank_of(const ladder::cpu::Values& values, float value) {
  const std::int32_t rows = count_less(values.row_begins, value);
  if (rows == 0) return 0;
  const std::int32_t row = 16 * (rows - 1);
  return row + count_less(values.borders + row, value);
}

}  // namespace

#include "cpu/quantize_loops.h"

namespace ladder::cpu {

const QuantizeKernels& avx2_quantize_kernels() { return kQuantizeKernels; }

}  // namespace ladder::cpu
