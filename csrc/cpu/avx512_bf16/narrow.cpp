// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512_bf16/loops.h"

namespace ladder::cpu::avx512_bf16 {

const Loops& narrow_loops(const Job& job) {
  switch (job.bits) {
    case 1: return loops_of<Narrow<1>>(job);
    case 2: return loops_of<Narrow<2>>(job);
    case 3: return loops_of<Narrow<3>>(job);
    default: return loops_of<Narrow<4>>(job);
  }
}

}  // namespace ladder::cpu::avx512_bf16
