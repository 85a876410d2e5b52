// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by smull: every aarch64 processor has it.
#include "cpu/int8/neon_loops.h"

namespace ladder::cpu::int8 {
namespace {

/// x is within 127 of 0: two products of bytes, at most 2 * 127 * 128, fit 16 bits.
struct Multiply {
  static int32x4_t add(int32x4_t sum, int8x16_t u, int8x16_t x) {
    const int16x8_t eight = vmull_s8(vget_low_s8(u), vget_low_s8(x));
    return vpadalq_s16(sum, vmlal_high_s8(eight, u, x));
  }
};

}  // namespace

const Kernels& neon_kernels() { return kKernels<Fours<Multiply>>; }

}  // namespace ladder::cpu::int8
