// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/joined.h"
#include "codegen/emit/plain_functions.h"
#include "codegen/hip/prelude.h"

namespace ladder::hip {

std::string_view byte_prelude() {
  return R"(// Products of bytes in two's complement, both operands: of 16 columns on gfx90a, of 32 on gfx942 and
// newer, on gfx950 of 64 too, of 16 on RDNA. A compiler for other machines than AMD's sees all.
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
#if defined(__gfx950__) || !defined(__AMDGCN__)
// Of 64, of which a lane has sixteen.
DEVICE void mma_s8_k64(int* d, const u32* a, const u32* b) {
  const s32x4 x = {(int)a[0], (int)a[1], (int)a[2], (int)a[3]};
  const s32x4 y = {(int)b[0], (int)b[1], (int)b[2], (int)b[3]};
  s32x4 sum = {d[0], d[1], d[2], d[3]};
  sum = __builtin_amdgcn_mfma_i32_16x16x64_i8(x, y, sum, 0, 0, 0);
  for (int i = 0; i < 4; ++i) d[i] = sum[i];
}
#endif
// d[16, 16] += a[16 rows, 16] b[16 tokens, 16] by 32 lanes, both in two's complement: of RDNA 4, which
// have eight columns and eight rows each; and of RDNA 3, which have all 16 columns, in both halves
// of a wave, and every other row.
typedef int s32x2 __attribute__((vector_size(8)));
typedef int s32x8 __attribute__((vector_size(32)));
DEVICE s32x8 eight_integers(const int* d) {
  return s32x8{d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
}
#if defined(__GFX12__) || !defined(__AMDGCN__)
DEVICE void wmma_s8(int* d, const u32* a, const u32* b) {
  const s32x2 x = {(int)a[0], (int)a[1]}, y = {(int)b[0], (int)b[1]};
  const s32x8 sum = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, x, true, y,
                                                                     eight_integers(d), false);
  for (int i = 0; i < 8; ++i) d[i] = sum[i];
}
#endif
#if defined(__GFX11__) || !defined(__AMDGCN__)
DEVICE void wmma_twice_s8(int* d, const u32* a, const u32* b) {
  const s32x4 x = {(int)a[0], (int)a[1], (int)a[2], (int)a[3]};
  const s32x4 y = {(int)b[0], (int)b[1], (int)b[2], (int)b[3]};
  const s32x8 sum = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, x, true, y,
                                                               eight_integers(d), false);
  for (int i = 0; i < 8; ++i) d[i] = sum[i];
}
#endif
// Of four bytes, each less its byte of `zeros`.
DEVICE u32 less_zeros(u32 codes, u32 zeros) {
  return ((codes | 0x80808080u) - zeros) ^ 0x80808080u;
}
)";
}

std::string_view float_byte_prelude() {
  static const std::string text = joined(
      R"(// Products of e4m3 of 32 columns, by one builtin: gfx942 reads the bytes as e4m3fnuz, gfx950 as those
// of OCP. Each sees its own alone, a compiler for other machines than AMD's all.
DEVICE void mma_float_bytes(float* d, const u32* a, const u32* b) {
  const u32x2 x = {a[0], a[1]}, y = {b[0], b[1]};
  f32x4 sum = {d[0], d[1], d[2], d[3]};
  sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, x),
                                                   __builtin_bit_cast(long, y), sum, 0, 0, 0);
  for (int i = 0; i < 4; ++i) d[i] = sum[i];
}
#if defined(__gfx942__) || !defined(__AMDGCN__)
DEVICE void mma_e4m3fnuz(float* d, const u32* a, const u32* b) { mma_float_bytes(d, a, b); }
)",
      codegen::kFnuzFunctions, R"(#endif
#if defined(__gfx950__) || !defined(__AMDGCN__)
DEVICE void mma_e4m3(float* d, const u32* a, const u32* b) { mma_float_bytes(d, a, b); }
#endif
#if defined(__GFX12__) || !defined(__AMDGCN__)
// Of OCP, 16 columns by 32 lanes of RDNA 4, which have eight columns and eight rows each.
typedef int s32x2 __attribute__((vector_size(8)));
DEVICE void wmma_e4m3(float* d, const u32* a, const u32* b) {
  const s32x2 x = {(int)a[0], (int)a[1]}, y = {(int)b[0], (int)b[1]};
  const f32x8 sum = __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(x, y, eight_sums(d));
  for (int i = 0; i < 8; ++i) d[i] = sum[i];
}
#endif
)");
  return text;
}

std::string_view code_prelude() {
  static const std::string text = joined(codegen::kBytesFunctions, codegen::kFloatBytesFunctions);
  return text;
}

std::string_view whole_byte_prelude() {
  return R"(// Four whole numbers, each less its byte of `zeros`, in e4m3 times 2^-9: up to 16 distances
// are that as they are. No byte borrows from the next.
DEVICE u32 whole_less_zeros(u32 codes, u32 zeros) {
  const u32 less = (codes | 0x80808080u) - zeros, sign = ~less & 0x80808080u, one = sign >> 7;
  return (((less & 0x7f7f7f7fu) ^ (sign - one)) + one) | sign;
}
)";
}

}  // namespace ladder::hip
