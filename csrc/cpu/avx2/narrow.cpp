// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/loops.h"

namespace ladder::cpu::avx2 {

const Loops& narrow_loops(const Job& job) {
  switch (job.bits) {
    case 1: return loops_of<Narrow<1>>(job);
    case 2: return loops_of<Narrow<2>>(job);
    case 3: return loops_of<Narrow<3>>(job);
    default:
      return job.tables->bfloat16_exact ? loops_of<Nibbles<true>>(job)
                                        : loops_of<Nibbles<false>>(job);
  }
}

}  // namespace ladder::cpu::avx2
