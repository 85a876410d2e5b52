// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/prelude.h"

namespace ladder::cuda {

std::string_view digit_prelude() {
  return R"(// A of that type, B of s8.
#if __CUDA_ARCH__ >= 800
#define MMA_BYTES(TYPE) \
  DEVICE void mma_##TYPE(int* d, const u32* a, const u32* b) { \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." #TYPE ".s8.s32 " \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
#else  // quarters: eight rows by half of the columns
#define MMA_BYTES(TYPE) \
  DEVICE void mma_quarter_##TYPE(int* d, u32 a, u32 b) { \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." #TYPE ".s8.s32 " \
                 "{%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+r"(d[0]), "+r"(d[1]) : "r"(a), "r"(b)); \
  } \
  DEVICE void mma_##TYPE(int* d, const u32* a, const u32* b) { \
    mma_quarter_##TYPE(d, a[0], b[0]); \
    mma_quarter_##TYPE(d + 2, a[1], b[0]); \
    mma_quarter_##TYPE(d, a[2], b[1]); \
    mma_quarter_##TYPE(d + 2, a[3], b[1]); \
  }
#endif
MMA_BYTES(u8)
MMA_BYTES(s8)
// Of four bytes, each less its byte of `zeros`.
DEVICE u32 less_zeros(u32 codes, u32 zeros) {
  return ((codes | 0x80808080u) - zeros) ^ 0x80808080u;
}
// Bytes of four words by rows of `pitch` bytes, and of as many more.
DEVICE void store_rows(u8* to, u32 pitch, const u32* of) {
  const u32 a = __byte_perm(of[0], of[1], 0x5140), b = __byte_perm(of[2], of[3], 0x5140);
  *(u32*)to = __byte_perm(a, b, 0x5410);
  *(u32*)(to + pitch) = __byte_perm(a, b, 0x7632);
}
DEVICE void store_more_rows(u8* to, u32 pitch, const u32* of) {
  const u32 a = __byte_perm(of[0], of[1], 0x7362), b = __byte_perm(of[2], of[3], 0x7362);
  *(u32*)(to + 2 * pitch) = __byte_perm(a, b, 0x5410);
  *(u32*)(to + 3 * pitch) = __byte_perm(a, b, 0x7632);
}
// The six digits of four float16; whether all are finite. With 128 added to every digit, digits are
// the bytes of the sum.
DEVICE bool split_f16(u8* to, u32 pitch, const u32* x) {
  u32 low[4], high[4];
  bool finite = true;
  for (u32 j = 0; j < 4u; ++j) {
    const u32 exponent = x[j] >> 10 & 31u;
    const u64 units = (u64)((x[j] & 1023u) | (exponent != 0 ? 1024u : 0u))
                      << (exponent != 0 ? exponent - 1 : 0);
    const u64 digits = ((x[j] & 0x8000u) != 0 ? 0 - units : units) + 0x808080808080u;
    low[j] = (u32)digits ^ 0x80808080u;
    high[j] = (u32)(digits >> 32) ^ 0x8080u;
    finite &= exponent != 31;
  }
  store_rows(to, pitch, low);
  store_more_rows(to, pitch, low);
  store_rows(to + 4 * pitch, pitch, high);
  return finite;
}
// The larger of an exponent and those of four bfloat16; subnormals have 1.
DEVICE u32 larger_bf16(u32 exponent, const u32* x) {
  for (u32 j = 0; j < 4u; ++j) exponent = max(exponent, max(x[j] >> 7 & 255u, 1u));
  return exponent;
}
// The largest of all threads, which is at most 255; in all of them.
DEVICE u32 largest_of_block(u32 value) {
  __shared__ u32 largest;
  if (threadIdx.x == 0) largest = 0;
  barrier();
  value = largest_of_warp(value);
  if (threadIdx.x % 32 == 0) atomicMax(&largest, value);
  barrier();
  return largest;
}
// The eight digits of four bfloat16 whose largest exponent is given.
DEVICE void split_bf16(u8* to, u32 pitch, const u32* x, u32 largest) {
  u32 low[4], high[4];
  for (u32 j = 0; j < 4u; ++j) {
    const u32 exponent = x[j] >> 7 & 255u, below = largest - (exponent != 0 ? exponent : 1u);
    const u64 mantissa = (x[j] & 127u) | (exponent != 0 ? 128u : 0u);
    const u64 units = below <= 54 ? mantissa << (54 - below) : below < 64 ? mantissa >> (below - 54) : 0;
    const u64 digits = ((x[j] & 0x8000u) != 0 ? 0 - units : units) + 0x8080808080808080u;
    low[j] = (u32)digits ^ 0x80808080u;
    high[j] = (u32)(digits >> 32) ^ 0x80808080u;
  }
  store_rows(to, pitch, low);
  store_more_rows(to, pitch, low);
  store_rows(to + 4 * pitch, pitch, high);
  store_more_rows(to + 4 * pitch, pitch, high);
}
// A barrier; whether it holds for all threads of the block.
DEVICE bool all_threads(bool holds) { return __syncthreads_and(holds); }

// The sum over a quad, whose lane t has the sums of digits 2 t and 2 t + 1; digit 0 is 2^Exponent.
template <int Exponent> DEVICE float join_digits(float low, float high) {
  const u32 first = 127 + Exponent + 16u * (threadIdx.x % 4);
  float sum = low * as_float(first << 23) + high * as_float((first + 8u) << 23);
  for (u32 other = 1; other < 4u; other *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
  return sum;
}
)";
}

}  // namespace ladder::cuda
