// SPDX-License-Identifier: Apache-2.0
//
// What sm_80 brought, and what sm_75 and sm_70 have in its place. They copy by a load and a store
// of the thread that asks. Such a copy has ended before it is waited for, which programs allow:
// they overwrite nothing that may still be read (program.h). They have no arithmetic of bfloat16,
// so that no program multiplies bfloat16 there; weights can be dequantised to it.
#include "codegen/cuda/prelude.h"

namespace ladder::cuda {

std::string_view since_ampere() {
  return R"(#if __CUDA_ARCH__ >= 800
// Sixteen or eight bytes to shared memory; zeros where `bytes` is 0.
DEVICE void copy_async(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes)
               : "memory");
}
DEVICE void copy_async_8(u32 to, const void* from, u32 bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(from), "r"(bytes)
               : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending> DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(Pending) : "memory");
}
DEVICE u32 fma_bf16(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
#define MMA(TYPE) \
  DEVICE void mma_##TYPE(float* d, const u32* a, const u32* b) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #TYPE "." #TYPE ".f32 " \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
MMA(f16)
MMA(bf16)
DEVICE u32 pack_f16(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
DEVICE u32 pack_bf16(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// In all lanes.
DEVICE u32 largest_of_warp(u32 value) { return __reduce_max_sync(0xffffffffu, value); }
#else
DEVICE void copy_async(u32 to, const void* from, u32 bytes) {
  Words4 v = {};
  if (bytes != 0) v = load_now((const Words4*)from);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "r"(to), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
}
DEVICE void copy_async_8(u32 to, const void* from, u32 bytes) {
  Words2 v = {};
  if (bytes != 0) v = load_now((const Words2*)from);
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(to), "r"(v.w[0]), "r"(v.w[1])
               : "memory");
}
DEVICE void copy_commit() {}
template <int Pending> DEVICE void copy_wait() {}
// The operands of m16n8k16 are those of two m16n8k8 side by side.
DEVICE void mma_half_f16(float* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
DEVICE void mma_f16(float* d, const u32* a, const u32* b) {
  mma_half_f16(d, a, b);
  mma_half_f16(d, a + 2, b + 1);
}
DEVICE u32 pack_f16(float low, float high) {
  u32 both;
  asm("{.reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
      : "=r"(both) : "f"(low), "f"(high));
  return both;
}
// To the nearest, ties to even; NaN as the instruction of sm_80 has it.
DEVICE u32 rounded_bf16(float value) {
  const u32 bits = as_bits(value);
  return value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
DEVICE u32 pack_bf16(float low, float high) { return rounded_bf16(low) | rounded_bf16(high) << 16; }
DEVICE u32 largest_of_warp(u32 value) {
  for (u32 other = 16; other != 0; other /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, other));
  }
  return value;
}
#endif
)";
}

std::string_view quad_pair_prelude() {
  return R"(// A quarter of 16 x 16 sums by each quad pair, four columns of operands at once.
DEVICE void mma_quad_pairs_f16(float* d, const u32* a, const u32* b) {
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
                 "{%0, %1, %2, %3, %4, %5, %6, %7};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
                   "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "r"(a[k]), "r"(a[k + 1]), "r"(b[k]), "r"(b[k + 1]));
  }
}
)";
}

}  // namespace ladder::cuda
