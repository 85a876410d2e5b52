// SPDX-License-Identifier: Apache-2.0
#include "codegen/hip/prelude.h"

namespace ladder::hip {

std::string_view byte_prelude() {
  return R"(// Products of bytes in two's complement, both operands: of 16 columns on gfx90a, of 32 on gfx942 and
// newer. A compiler for other machines than AMD's sees both.
typedef int s32x4 __attribute__((vector_size(16)));
#ifndef __gfx90a__
// d[16, 16] += a[16 rows, 32] b[16 tokens, 32]: a lane has eight columns of one row or token, and
// four rows of one token.
DEVICE void mma_s8(int* d, const u32* a, const u32* b) {
  const u32x2 x = {a[0], a[1]}, y = {b[0], b[1]};
  s32x4 sum = {d[0], d[1], d[2], d[3]};
  sum = __builtin_amdgcn_mfma_i32_16x16x32_i8(__builtin_bit_cast(long, x),
                                              __builtin_bit_cast(long, y), sum, 0, 0, 0);
  for (int i = 0; i < 4; ++i) d[i] = sum[i];
}
#endif
#if defined(__gfx90a__) || !defined(__AMDGCN__)
// The same of 16 columns, of which a lane has four.
DEVICE void mma_s8_k16(int* d, const u32* a, const u32* b) {
  s32x4 sum = {d[0], d[1], d[2], d[3]};
  sum = __builtin_amdgcn_mfma_i32_16x16x16i8((int)a[0], (int)b[0], sum, 0, 0, 0);
  for (int i = 0; i < 4; ++i) d[i] = sum[i];
}
#endif
// Of four bytes, each less its byte of `zeros`.
DEVICE u32 less_zeros(u32 codes, u32 zeros) {
  return ((codes | 0x80808080u) - zeros) ^ 0x80808080u;
}
)";
}

}  // namespace ladder::hip
