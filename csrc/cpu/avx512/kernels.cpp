// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"

#if defined(LADDER_X86)
namespace ladder::cpu {
const Kernels& avx512_kernels() { return generic_kernels(); }
const Kernels& avx512_bf16_kernels() { return generic_kernels(); }
}  // namespace ladder::cpu
#endif
