// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/loops.h"
#include "cpu/avx2/pairs.h"

namespace ladder::cpu::avx2 {
namespace {

template <int kBits>
const Loops& wide(const Job& job) {
  const Tables& t = *job.tables;
  if (t.step != 0) return loops_of<Even<kBits>>(job);
  if (t.half_exponent != 0) return loops_of<Half<kBits>>(job);
  if (!t.bfloat16_exact) {
    if constexpr (kBits >= 6) return loads_loops(job);
    return loops_of<Any<kBits, 4, false>>(job);
  }
  if constexpr (kBits >= 6)
    if (t.split) return loops_of<Split<kBits>>(job);
  // Look-ups among 128 values take longer than a load each; among 64 they do not.
  if constexpr (kBits == 8) return loads_loops(job);
  if constexpr (kBits == 7)
    return t.mirrored_by_sign ? loops_of<Any<kBits, 2, true>>(job) : loads_loops(job);
  return loops_of<Any<kBits, 2, false>>(job);
}

}  // namespace

const Loops& wide_loops(const Job& job) {
  switch (job.bits) {
    case 5: return wide<5>(job);
    case 6: return wide<6>(job);
    case 7: return wide<7>(job);
    default: return wide<8>(job);
  }
}

}  // namespace ladder::cpu::avx2
