// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"

#if defined(LADDER_X86)
namespace ladder::cpu {
const Kernels& avx2_kernels() { return generic_kernels(); }
}  // namespace ladder::cpu
#endif
