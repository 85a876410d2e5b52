// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/sums.h"

namespace ladder::cpu::avx512 {

const Loops& narrow_loops(const Job& job) {
  switch (job.bits) {
    case 1: return loops_of<Narrow<1>>(job);
    case 2: return loops_of<Narrow<2>>(job);
    case 3: return loops_of<Narrow<3>>(job);
    default:
      return job.tables->bfloat16_exact ? sums_or<Nibbles, Narrow<4>>(job)
                                        : loops_of<Narrow<4>>(job);
  }
}

}  // namespace ladder::cpu::avx512
