// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/loops.h"

namespace ladder::cpu::avx2 {

const Loops& plain_loops(const Job& job) {
  switch (job.storage) {
    case Storage::float16: return loops_of<Plain<Storage::float16>>(job);
    case Storage::bfloat16: return loops_of<Plain<Storage::bfloat16>>(job);
    default: return loops_of<Plain<Storage::float32>>(job);
  }
}

}  // namespace ladder::cpu::avx2
