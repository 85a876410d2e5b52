// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by sdot.
#include "cpu/int8/neon_loops.h"

namespace ladder::cpu::int8 {
namespace {

struct Dot {
  static int32x4_t add(int32x4_t sum, int8x16_t u, int8x16_t x) { return vdotq_s32(sum, u, x); }
};

}  // namespace

const Kernels& neon_dotprod_kernels() { return kKernels<Fours<Dot>>; }

}  // namespace ladder::cpu::int8
