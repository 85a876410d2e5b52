// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512_bf16/loops.h"

namespace ladder::cpu::avx512_bf16 {

const Loops& wide_loops(const Job& job) {
  switch (job.bits) {
    case 5: return loops_of<Middle<5>>(job);
    case 6: return loops_of<Middle<6>>(job);
    case 7: return loops_of<Wide<7>>(job);
    default: return loops_of<Wide<8>>(job);
  }
}

}  // namespace ladder::cpu::avx512_bf16
