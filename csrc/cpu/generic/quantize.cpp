// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cpu/quantize_kernels.h"

namespace {

/// Without a branch that nobody can predict: the next half is taken or not.
std::int32_t rank_of(const ladder::cpu::Values& values, float value) {
  std::int32_t rank = 0;
  for (std::int32_t half = 128; half > 0; half /= 2)
    rank += half & -static_cast<std::int32_t>(values.borders[rank + half - 1] < value);
  return rank;
}

}  // namespace

#include "cpu/quantize_loops.h"

namespace ladder::cpu {

const QuantizeKernels& generic_quantize_kernels() { return kQuantizeKernels; }

}  // namespace ladder::cpu
