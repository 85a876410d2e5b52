// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/loops.h"

namespace ladder::cpu::avx512 {

const Loops& wide_loops(const Job& job) {
  const bool exact = job.tables->bfloat16_exact;
  switch (job.bits) {
    case 5: return loops_of<Five>(job);
    case 6: return exact ? loops_of<Six<true>>(job) : loops_of<Six<false>>(job);
    case 7: return exact ? loops_of<Wide<7, true>>(job) : loops_of<Wide<7, false>>(job);
    default: return exact ? loops_of<Wide<8, true>>(job) : loops_of<Wide<8, false>>(job);
  }
}

}  // namespace ladder::cpu::avx512
