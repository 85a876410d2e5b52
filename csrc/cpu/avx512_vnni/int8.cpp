// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by vpdpbusd of 512 bits.
#include "cpu/int8/x86_512.h"

namespace ladder::cpu::int8 {

const Kernels& avx512_vnni_kernels() { return kKernels<V, loops_of<V, D>, 6>; }

}  // namespace ladder::cpu::int8
