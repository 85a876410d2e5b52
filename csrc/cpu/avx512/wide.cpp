// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/sums.h"

namespace ladder::cpu::avx512 {

namespace {

template <int kBits>
const Loops& bytes_loops(const Job& job) {
  // No format of at most 8 bits has more significant ones; a registered one may.
  if (!job.tables->bfloat16_exact) return loops_of<Wide<kBits, false>>(job);
  using Old = Wide<kBits, true>;
  if (job.tables->linear) return sums_or<Integer<kBits>, Old>(job);
  if (kBits == 8 && job.tables->mirrored) return sums_or<Planes<kBits, kBits == 8>, Old>(job);
  return sums_or<Planes<kBits, false>, Old>(job);
}

}  // namespace

const Loops& wide_loops(const Job& job) {
  const bool exact = job.tables->bfloat16_exact;
  switch (job.bits) {
    case 5: return sums_or<Halves<Five>, Five>(job);
    case 6: return exact ? sums_or<Halves<Six<true>>, Six<true>>(job) : loops_of<Six<false>>(job);
    case 7: return bytes_loops<7>(job);
    default: return bytes_loops<8>(job);
  }
}

}  // namespace ladder::cpu::avx512
