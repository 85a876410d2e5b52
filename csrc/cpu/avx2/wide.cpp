// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx2/loops.h"
#include "cpu/avx2/pairs.h"

namespace ladder::cpu::avx2 {
namespace {

/// Any values of 7 or 8 bits: a load for each. Looking up their four bytes (Any) takes longer, and so
/// do the gathers of the machine.
template <int kBits>
struct Loads {
  static constexpr int kVectors = 1, kSteps = 4;
  static constexpr Zeros kZeros = Zeros::none;
  static constexpr bool kFactor = false, kChecked = false;
  struct Table {
    const float* values;
  };
  static Table table(const Tables& t) { return {t.values}; }
  static void values(const std::uint8_t* p, const Table& t, __m256 (&out)[kSteps]) {
#pragma GCC unroll 4
    for (int i = 0; i < kSteps; ++i) {
      // The last 8 bytes of the step begin a byte before its last codes, if these have 7 bits.
      const int before = i == kSteps - 1 ? 8 - kBits : 0;
      std::uint64_t codes;
      __builtin_memcpy(&codes, p + kBits * i - before, 8);
      codes >>= 8 * before;
      if constexpr (kBits == 7) codes = _pdep_u64(codes, 0x7f7f7f7f7f7f7f7f);
      const auto value = [&](int c) { return t.values[codes >> 8 * c & 0xff]; };
      out[i] = _mm256_setr_ps(value(0), value(1), value(2), value(3), value(4), value(5), value(6),
                              value(7));
    }
  }
};

template <int kBits>
const Loops& wide(const Job& job) {
  const Tables& t = *job.tables;
  if (t.step != 0) return loops_of<Even<kBits>>(job);
  if (t.half_exponent != 0) return loops_of<Half<kBits>>(job);
  if (!t.bfloat16_exact) {
    if constexpr (kBits >= 7) return loops_of<Loads<kBits>>(job);
    return loops_of<Any<kBits, 4, false>>(job);
  }
  if constexpr (kBits >= 6)
    if (t.split) return loops_of<Split<kBits>>(job);
  if constexpr (kBits >= 7)  // half of a small table saves little
    if (t.mirrored_by_sign) return loops_of<Any<kBits, 2, true>>(job);
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
