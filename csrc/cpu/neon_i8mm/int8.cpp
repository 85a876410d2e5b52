// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by smmla: 2 tokens by 2 rows, 8 columns of each.
#include "cpu/int8/neon_loops.h"

namespace ladder::cpu::int8 {
namespace {

struct Matrix8 {
  static constexpr bool kPairs = true;
  template <int kCount>
  struct Sums {
    static constexpr int kTokenPairs = (kCount + 1) / 2;  ///< an odd last token is its own partner
    int32x4_t sums[kTokenPairs][2];

    Sums() {
      for (auto& pair : sums)
        for (int32x4_t& sum : pair) sum = vdupq_n_s32(0);
    }
    void add(const std::uint8_t* w, const std::int8_t* const* x, std::int64_t padded_k,
             std::int64_t k) {
      int8x16_t tokens[kTokenPairs][2];  // the first 8 columns of two tokens, the other 8
      for (int p = 0; p < kTokenPairs; ++p) {
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(x[2 * p] + k));
        const int64x2_t b =
            vreinterpretq_s64_s8(vld1q_s8(x[2 * p + 1 < kCount ? 2 * p + 1 : 2 * p] + k));
        tokens[p][0] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        tokens[p][1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
      }
      for (int rows = 0; rows < 2; ++rows)
        for (int half = 0; half < 2; ++half) {
          const int8x16_t pair =
              vreinterpretq_s8_u8(vld1q_u8(w + place<Matrix8>(padded_k, 2 * rows, k + 8 * half)));
          for (int p = 0; p < kTokenPairs; ++p)
            sums[p][rows] = vmmlaq_s32(sums[p][rows], tokens[p][half], pair);
        }
    }
    /// Of a pair: token 0 by rows 0 and 1, token 1 by the same.
    int32x4_t of(int t) const {
      const int64x2_t low = vreinterpretq_s64_s32(sums[t / 2][0]);
      const int64x2_t high = vreinterpretq_s64_s32(sums[t / 2][1]);
      return vreinterpretq_s32_s64(t % 2 == 0 ? vzip1q_s64(low, high) : vzip2q_s64(low, high));
    }
  };
};

}  // namespace

const Kernels& neon_i8mm_kernels() { return kKernels<Matrix8>; }

}  // namespace ladder::cpu::int8
