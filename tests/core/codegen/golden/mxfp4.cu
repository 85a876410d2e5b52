// SPDX-License-Identifier: Apache-2.0
// y[m<=8, n=64] bf16 = sum k=128: x[m, k] bf16 * s[n, k/32] e8m0 * float4_e2m1[n, k]
// tokens 8, warps 1x1, blocks 1, k-tiles 2, stages 2, none, multiply_add, 1 per multiprocessor
// The root of what the top bit of a code of e8m0 stands for, 2^64 or 1, in bf16; 255 is NaN.
DEVICE u32 root_above(u32 code) { return code < 128 ? 0x3f80u : code == 255 ? 0x7fc0u : 0x5f80u; }
// Of the codes in both halves of a word.
DEVICE u32 roots_above(u32 codes) {
  return root_above(codes & 0xffu) | root_above(codes >> 16) << 16;
}
// The scale whose code is bits 23 to 30 of `shifted`, times 2 - 2^-23, or 1 - 2^-23 for code 0: a
// product with (1/2 + 2^-24) times a power of two rounds to that power times 2^(code - 127).
DEVICE float ones_e8m0(u32 shifted) { return fabsf(as_float(shifted | 0x007fffffu)); }
// The codes in the low or the high half of a word.
#if __CUDA_ARCH__ >= 890
DEVICE u32 low_e4m3(u32 codes) {
  u32 both;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(both) : "r"(codes));
  return both;
}
DEVICE u32 high_e4m3(u32 codes) {
  u32 both;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(both) : "r"(codes));
  return both;
}
#else
DEVICE u32 low_e4m3(u32 codes) {
  return fma_f16(halves_e4m3(__byte_perm(codes, 0u, 0x1404u)), 0x5c005c00u, 0x80008000u);
}
DEVICE u32 high_e4m3(u32 codes) {
  return fma_f16(halves_e4m3(__byte_perm(codes, 0u, 0x3424u)), 0x5c005c00u, 0x80008000u);
}
#endif
DEVICE u32 low_twice(u32 both) {
  u32 twice;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(twice) : "r"(both));
  return twice;
}
DEVICE u32 high_twice(u32 both) {
  u32 twice;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(twice) : "r"(both));
  return twice;
}
// Two f16 that bf16 holds.
DEVICE u32 bf16_of_f16(u32 both) { return pack_bf16(low_f16(both), high_f16(both)); }
// Two f16 times a factor.
DEVICE u32 scaled_bf16(u32 both, float factor) {
  return pack_bf16(low_f16(both) * factor, high_f16(both) * factor);
}

extern "C" __global__ void __launch_bounds__(32, 1)
linear_float4_e2m1(const u32* __restrict__ weight, const u8* __restrict__ scales, u16* __restrict__ x, u16* __restrict__ y, u32 tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;
  u32* const ring = (u32*)(shared + 0);
  u8* const scale_ring = (u8*)(shared + 4096);
  u16* const x_tile = (u16*)(shared + 5120);
  float* const sums = (float*)(shared + 0);
  u32 words[16];
  u32 scale_table[4];
  u32 scale[4];
  u32 a[16];
  u32 b[2];
  float acc[16];
  float total[16];
  float sum[16];
  float part[16];
  u32 out[8];
  {  // copy_async x_tile = x[0, split*128]
    const u32 me = anew(thread);
    const u32 row = me / 16u, column = me % 16u * 8u;
    const u32 from_row = row + 0, from_column = column + split * 128;
    const u16* const source = x + ((u64)from_row * 128u + from_column);
    const u32 target = shared_address(x_tile + row * 136u + column);
    copy_async(target + 0u, source + 0, from_row + 0u < tokens ? 16u : 0u);
    copy_async(target + 544u, source + 256, from_row + 2u < tokens ? 16u : 0u);
    copy_async(target + 1088u, source + 512, from_row + 4u < tokens ? 16u : 0u);
    copy_async(target + 1632u, source + 768, from_row + 6u < tokens ? 16u : 0u);
  }
  {  // commit
    copy_commit();
  }
  {  // copy_own ring[0, 0, 0, 0, 0] = weight[tile, split*2, 0, 0, 0] while 0 < 2
    if (0 < 2) {
      const u32* const from = weight + (((thread) * 4) + tile * 1024 + split * 1024);
      const u32 to = shared_address(ring + (((thread) * 4)));
      copy_async(to + 0u, from + 0, 16u);
      copy_async(to + 512u, from + 128, 16u);
      copy_async(to + 1024u, from + 256, 16u);
      copy_async(to + 1536u, from + 384, 16u);
    }
  }
  {  // copy_own scale_ring[0, 0, 0, 0, 0] = scales[split*4, tile, 0, 0, 0] while 0 < 2
    if (0 < 2) {
      const u8* const from = scales + (((thread / 4) * 8) + split * 256 + tile * 64);
      const u32 to = shared_address(scale_ring + (((thread / 4) * 32) + ((thread % 4) * 8)));
      copy_async_8(to + 0u, from + 0, 8u);
      copy_async_8(to + 256u, from + 64, 8u);
    }
  }
  {  // commit
    copy_commit();
  }
  {  // wait pending<=1
    copy_wait<1>();
  }
  {  // barrier
    barrier();
  }
  {  // total = 0
    total[0] = 0x0p+0f;
    total[1] = 0x0p+0f;
    total[2] = 0x0p+0f;
    total[3] = 0x0p+0f;
    total[4] = 0x0p+0f;
    total[5] = 0x0p+0f;
    total[6] = 0x0p+0f;
    total[7] = 0x0p+0f;
    total[8] = 0x0p+0f;
    total[9] = 0x0p+0f;
    total[10] = 0x0p+0f;
    total[11] = 0x0p+0f;
    total[12] = 0x0p+0f;
    total[13] = 0x0p+0f;
    total[14] = 0x0p+0f;
    total[15] = 0x0p+0f;
  }
  #pragma unroll 1
  for (u32 k_tile = 0; k_tile < 2; ++k_tile) {
    {  // wait pending<=0
      copy_wait<0>();
    }
    {  // words = load ring[k_tile%2, 0, 0, 0, 0]
      const u32* const from = ring + (((thread) * 4) + (k_tile % 2u) * 512);
      { Words4 v; v = *(const Words4*)(from + 0); words[0] = v.w[0]; words[1] = v.w[1]; words[2] = v.w[2]; words[3] = v.w[3]; }
      { Words4 v; v = *(const Words4*)(from + 128); words[4] = v.w[0]; words[5] = v.w[1]; words[6] = v.w[2]; words[7] = v.w[3]; }
      { Words4 v; v = *(const Words4*)(from + 256); words[8] = v.w[0]; words[9] = v.w[1]; words[10] = v.w[2]; words[11] = v.w[3]; }
      { Words4 v; v = *(const Words4*)(from + 384); words[12] = v.w[0]; words[13] = v.w[1]; words[14] = v.w[2]; words[15] = v.w[3]; }
    }
    {  // scale_table = load scale_ring[0, k_tile%2, 0, 0, 0]
      const u8* const from = scale_ring + (((thread / 4) * 32) + ((thread % 4) * 8) + (k_tile % 2u) * 512);
      { Words2 v; v = *(const Words2*)(from + 0); scale_table[0] = v.w[0]; scale_table[1] = v.w[1]; }
      { Words2 v; v = *(const Words2*)(from + 256); scale_table[2] = v.w[0]; scale_table[3] = v.w[1]; }
    }
    {  // scale = view scale_table
      scale[0] = scale_table[0];
      scale[1] = scale_table[1];
      scale[2] = scale_table[2];
      scale[3] = scale_table[3];
    }
    {  // copy_own ring[(k_tile + 1)%2, 0, 0, 0, 0] = weight[tile, split*2 + k_tile + 1, 0, 0, 0] while k_tile + 1 < 2
      if (k_tile + 1 < 2) {
        const u32* const from = weight + (((thread) * 4) + tile * 1024 + split * 1024 + k_tile * 512 + 512);
        const u32 to = shared_address(ring + (((thread) * 4) + ((k_tile + 1) % 2u) * 512));
        copy_async(to + 0u, from + 0, split * 2 + k_tile + 1 < 2u ? 16u : 0u);
        copy_async(to + 512u, from + 128, split * 2 + k_tile + 1 < 2u ? 16u : 0u);
        copy_async(to + 1024u, from + 256, split * 2 + k_tile + 1 < 2u ? 16u : 0u);
        copy_async(to + 1536u, from + 384, split * 2 + k_tile + 1 < 2u ? 16u : 0u);
      }
    }
    {  // copy_own scale_ring[0, (k_tile + 1)%2, 0, 0, 0] = scales[split*4 + k_tile*2 + 2, tile, 0, 0, 0] while k_tile + 1 < 2
      if (k_tile + 1 < 2) {
        const u8* const from = scales + (((thread / 4) * 8) + split * 256 + k_tile * 128 + tile * 64 + 128);
        const u32 to = shared_address(scale_ring + (((thread / 4) * 32) + ((thread % 4) * 8) + ((k_tile + 1) % 2u) * 512));
        copy_async_8(to + 0u, from + 0, split * 4 + k_tile * 2 + 2 < 4u ? 8u : 0u);
        copy_async_8(to + 256u, from + 64, split * 4 + k_tile * 2 + 3 < 4u ? 8u : 0u);
      }
    }
    {  // commit
      copy_commit();
    }
    // group = 0
    {  // acc = 0
      acc[0] = 0x0p+0f;
      acc[1] = 0x0p+0f;
      acc[2] = 0x0p+0f;
      acc[3] = 0x0p+0f;
      acc[4] = 0x0p+0f;
      acc[5] = 0x0p+0f;
      acc[6] = 0x0p+0f;
      acc[7] = 0x0p+0f;
      acc[8] = 0x0p+0f;
      acc[9] = 0x0p+0f;
      acc[10] = 0x0p+0f;
      acc[11] = 0x0p+0f;
      acc[12] = 0x0p+0f;
      acc[13] = 0x0p+0f;
      acc[14] = 0x0p+0f;
      acc[15] = 0x0p+0f;
    }
    // step = 0
    {  // b = load_matrix x_tile[0, 0, group*32 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + k_tile * 64)));
    }
    {  // a = unpack f4 words block group/2 step group%2*2 + step at bit 6 times 8.50706e+37
        a[0] = fma_bf16(((select_bits((words[0] << 2), (words[0] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[1] = fma_bf16((select_bits((words[0] << 2), (words[0] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[2] = fma_bf16(((select_bits((words[0] >> 6), words[0], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[3] = fma_bf16((select_bits((words[0] >> 6), words[0], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[4] = fma_bf16(((select_bits((words[4] << 2), (words[4] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[5] = fma_bf16((select_bits((words[4] << 2), (words[4] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[6] = fma_bf16(((select_bits((words[4] >> 6), words[4], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[7] = fma_bf16((select_bits((words[4] >> 6), words[4], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[8] = fma_bf16(((select_bits((words[8] << 2), (words[8] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[9] = fma_bf16((select_bits((words[8] << 2), (words[8] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[10] = fma_bf16(((select_bits((words[8] >> 6), words[8], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[11] = fma_bf16((select_bits((words[8] >> 6), words[8], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[12] = fma_bf16(((select_bits((words[12] << 2), (words[12] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[13] = fma_bf16((select_bits((words[12] << 2), (words[12] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[14] = fma_bf16(((select_bits((words[12] >> 6), words[12], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[15] = fma_bf16((select_bits((words[12] >> 6), words[12], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
    }
    {  // acc += mma a, b
      mma_bf16(acc + 0, a + 0, b + 0);
      mma_bf16(acc + 4, a + 4, b + 0);
      mma_bf16(acc + 8, a + 8, b + 0);
      mma_bf16(acc + 12, a + 12, b + 0);
    }
    // step = 1
    {  // b = load_matrix x_tile[0, 0, group*32 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + k_tile * 64 + 16)));
    }
    {  // a = unpack f4 words block group/2 step group%2*2 + step at bit 6 times 8.50706e+37
        a[0] = fma_bf16(((select_bits((words[1] << 2), (words[1] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[1] = fma_bf16((select_bits((words[1] << 2), (words[1] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[2] = fma_bf16(((select_bits((words[1] >> 6), words[1], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[3] = fma_bf16((select_bits((words[1] >> 6), words[1], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[4] = fma_bf16(((select_bits((words[5] << 2), (words[5] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[5] = fma_bf16((select_bits((words[5] << 2), (words[5] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[6] = fma_bf16(((select_bits((words[5] >> 6), words[5], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[7] = fma_bf16((select_bits((words[5] >> 6), words[5], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[8] = fma_bf16(((select_bits((words[9] << 2), (words[9] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[9] = fma_bf16((select_bits((words[9] << 2), (words[9] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[10] = fma_bf16(((select_bits((words[9] >> 6), words[9], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[11] = fma_bf16((select_bits((words[9] >> 6), words[9], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[12] = fma_bf16(((select_bits((words[13] << 2), (words[13] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[13] = fma_bf16((select_bits((words[13] << 2), (words[13] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[14] = fma_bf16(((select_bits((words[13] >> 6), words[13], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[15] = fma_bf16((select_bits((words[13] >> 6), words[13], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
    }
    {  // acc += mma a, b
      mma_bf16(acc + 0, a + 0, b + 0);
      mma_bf16(acc + 4, a + 4, b + 0);
      mma_bf16(acc + 8, a + 8, b + 0);
      mma_bf16(acc + 12, a + 12, b + 0);
    }
    {  // total += acc * scale[group] * 2^0
      const float s0 = ones_e8m0(scale[0] << 23) * 0x1.000002p-1f;
      total[0] += acc[0] * s0;
      total[1] += acc[1] * s0;
      const float s1 = ones_e8m0(scale[0] << 15) * 0x1.000002p-1f;
      total[2] += acc[2] * s1;
      total[3] += acc[3] * s1;
      const float s2 = ones_e8m0(scale[0] << 7) * 0x1.000002p-1f;
      total[4] += acc[4] * s2;
      total[5] += acc[5] * s2;
      const float s3 = ones_e8m0(scale[0] >> 1) * 0x1.000002p-1f;
      total[6] += acc[6] * s3;
      total[7] += acc[7] * s3;
      const float s4 = ones_e8m0(scale[1] << 23) * 0x1.000002p-1f;
      total[8] += acc[8] * s4;
      total[9] += acc[9] * s4;
      const float s5 = ones_e8m0(scale[1] << 15) * 0x1.000002p-1f;
      total[10] += acc[10] * s5;
      total[11] += acc[11] * s5;
      const float s6 = ones_e8m0(scale[1] << 7) * 0x1.000002p-1f;
      total[12] += acc[12] * s6;
      total[13] += acc[13] * s6;
      const float s7 = ones_e8m0(scale[1] >> 1) * 0x1.000002p-1f;
      total[14] += acc[14] * s7;
      total[15] += acc[15] * s7;
    }
    // group = 1
    {  // acc = 0
      acc[0] = 0x0p+0f;
      acc[1] = 0x0p+0f;
      acc[2] = 0x0p+0f;
      acc[3] = 0x0p+0f;
      acc[4] = 0x0p+0f;
      acc[5] = 0x0p+0f;
      acc[6] = 0x0p+0f;
      acc[7] = 0x0p+0f;
      acc[8] = 0x0p+0f;
      acc[9] = 0x0p+0f;
      acc[10] = 0x0p+0f;
      acc[11] = 0x0p+0f;
      acc[12] = 0x0p+0f;
      acc[13] = 0x0p+0f;
      acc[14] = 0x0p+0f;
      acc[15] = 0x0p+0f;
    }
    // step = 0
    {  // b = load_matrix x_tile[0, 0, group*32 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + k_tile * 64 + 32)));
    }
    {  // a = unpack f4 words block group/2 step group%2*2 + step at bit 6 times 8.50706e+37
        a[0] = fma_bf16(((select_bits((words[2] << 2), (words[2] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[1] = fma_bf16((select_bits((words[2] << 2), (words[2] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[2] = fma_bf16(((select_bits((words[2] >> 6), words[2], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[3] = fma_bf16((select_bits((words[2] >> 6), words[2], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[4] = fma_bf16(((select_bits((words[6] << 2), (words[6] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[5] = fma_bf16((select_bits((words[6] << 2), (words[6] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[6] = fma_bf16(((select_bits((words[6] >> 6), words[6], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[7] = fma_bf16((select_bits((words[6] >> 6), words[6], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[8] = fma_bf16(((select_bits((words[10] << 2), (words[10] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[9] = fma_bf16((select_bits((words[10] << 2), (words[10] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[10] = fma_bf16(((select_bits((words[10] >> 6), words[10], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[11] = fma_bf16((select_bits((words[10] >> 6), words[10], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[12] = fma_bf16(((select_bits((words[14] << 2), (words[14] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[13] = fma_bf16((select_bits((words[14] << 2), (words[14] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[14] = fma_bf16(((select_bits((words[14] >> 6), words[14], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[15] = fma_bf16((select_bits((words[14] >> 6), words[14], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
    }
    {  // acc += mma a, b
      mma_bf16(acc + 0, a + 0, b + 0);
      mma_bf16(acc + 4, a + 4, b + 0);
      mma_bf16(acc + 8, a + 8, b + 0);
      mma_bf16(acc + 12, a + 12, b + 0);
    }
    // step = 1
    {  // b = load_matrix x_tile[0, 0, group*32 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + k_tile * 64 + 48)));
    }
    {  // a = unpack f4 words block group/2 step group%2*2 + step at bit 6 times 8.50706e+37
        a[0] = fma_bf16(((select_bits((words[3] << 2), (words[3] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[1] = fma_bf16((select_bits((words[3] << 2), (words[3] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[2] = fma_bf16(((select_bits((words[3] >> 6), words[3], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[3] = fma_bf16((select_bits((words[3] >> 6), words[3], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[4] = fma_bf16(((select_bits((words[7] << 2), (words[7] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[5] = fma_bf16((select_bits((words[7] << 2), (words[7] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[6] = fma_bf16(((select_bits((words[7] >> 6), words[7], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[7] = fma_bf16((select_bits((words[7] >> 6), words[7], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[8] = fma_bf16(((select_bits((words[11] << 2), (words[11] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[9] = fma_bf16((select_bits((words[11] << 2), (words[11] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[10] = fma_bf16(((select_bits((words[11] >> 6), words[11], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[11] = fma_bf16((select_bits((words[11] >> 6), words[11], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[12] = fma_bf16(((select_bits((words[15] << 2), (words[15] << 8), 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[13] = fma_bf16((select_bits((words[15] << 2), (words[15] << 8), 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[14] = fma_bf16(((select_bits((words[15] >> 6), words[15], 0x88008800u) << 4) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
        a[15] = fma_bf16((select_bits((words[15] >> 6), words[15], 0x88008800u) & 0x81c081c0u), 0x7e807e80u, 0x80008000u);
    }
    {  // acc += mma a, b
      mma_bf16(acc + 0, a + 0, b + 0);
      mma_bf16(acc + 4, a + 4, b + 0);
      mma_bf16(acc + 8, a + 8, b + 0);
      mma_bf16(acc + 12, a + 12, b + 0);
    }
    {  // total += acc * scale[group] * 2^0
      const float s8 = ones_e8m0(scale[2] << 23) * 0x1.000002p-1f;
      total[0] += acc[0] * s8;
      total[1] += acc[1] * s8;
      const float s9 = ones_e8m0(scale[2] << 15) * 0x1.000002p-1f;
      total[2] += acc[2] * s9;
      total[3] += acc[3] * s9;
      const float s10 = ones_e8m0(scale[2] << 7) * 0x1.000002p-1f;
      total[4] += acc[4] * s10;
      total[5] += acc[5] * s10;
      const float s11 = ones_e8m0(scale[2] >> 1) * 0x1.000002p-1f;
      total[6] += acc[6] * s11;
      total[7] += acc[7] * s11;
      const float s12 = ones_e8m0(scale[3] << 23) * 0x1.000002p-1f;
      total[8] += acc[8] * s12;
      total[9] += acc[9] * s12;
      const float s13 = ones_e8m0(scale[3] << 15) * 0x1.000002p-1f;
      total[10] += acc[10] * s13;
      total[11] += acc[11] * s13;
      const float s14 = ones_e8m0(scale[3] << 7) * 0x1.000002p-1f;
      total[12] += acc[12] * s14;
      total[13] += acc[13] * s14;
      const float s15 = ones_e8m0(scale[3] >> 1) * 0x1.000002p-1f;
      total[14] += acc[14] * s15;
      total[15] += acc[15] * s15;
    }
  }
  {  // barrier
    barrier();
  }
  {  // store sums[0, 0, 0] = total
    float* const to = sums + (thread / 4 + ((thread % 4) * 136));
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 0) = {{as_bits(total[0])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 68) = {{as_bits(total[1])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 8) = {{as_bits(total[2])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 76) = {{as_bits(total[3])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 16) = {{as_bits(total[4])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 84) = {{as_bits(total[5])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 24) = {{as_bits(total[6])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 92) = {{as_bits(total[7])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 32) = {{as_bits(total[8])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 100) = {{as_bits(total[9])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 40) = {{as_bits(total[10])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 108) = {{as_bits(total[11])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 48) = {{as_bits(total[12])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 116) = {{as_bits(total[13])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 56) = {{as_bits(total[14])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 124) = {{as_bits(total[15])}}; }
  }
  {  // barrier
    barrier();
  }
  if (0 < tokens) {  // within sums[0, 0, 0] by sum
    {  // sum = load sums[0, 0, 0]
      const float* const from = sums + (((thread) * 2));
      { Words2 v = {}; if (0 < tokens) { v = *(const Words2*)(from + 0); } sum[0] = as_float(v.w[0]); sum[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (1 < tokens) { v = *(const Words2*)(from + 68); } sum[2] = as_float(v.w[0]); sum[3] = as_float(v.w[1]); }
      { Words2 v = {}; if (2 < tokens) { v = *(const Words2*)(from + 136); } sum[4] = as_float(v.w[0]); sum[5] = as_float(v.w[1]); }
      { Words2 v = {}; if (3 < tokens) { v = *(const Words2*)(from + 204); } sum[6] = as_float(v.w[0]); sum[7] = as_float(v.w[1]); }
      { Words2 v = {}; if (4 < tokens) { v = *(const Words2*)(from + 272); } sum[8] = as_float(v.w[0]); sum[9] = as_float(v.w[1]); }
      { Words2 v = {}; if (5 < tokens) { v = *(const Words2*)(from + 340); } sum[10] = as_float(v.w[0]); sum[11] = as_float(v.w[1]); }
      { Words2 v = {}; if (6 < tokens) { v = *(const Words2*)(from + 408); } sum[12] = as_float(v.w[0]); sum[13] = as_float(v.w[1]); }
      { Words2 v = {}; if (7 < tokens) { v = *(const Words2*)(from + 476); } sum[14] = as_float(v.w[0]); sum[15] = as_float(v.w[1]); }
    }
    {  // out = cast sum
      out[0] = pack_bf16(sum[0], sum[1]);
      out[1] = pack_bf16(sum[2], sum[3]);
      out[2] = pack_bf16(sum[4], sum[5]);
      out[3] = pack_bf16(sum[6], sum[7]);
      out[4] = pack_bf16(sum[8], sum[9]);
      out[5] = pack_bf16(sum[10], sum[11]);
      out[6] = pack_bf16(sum[12], sum[13]);
      out[7] = pack_bf16(sum[14], sum[15]);
    }
    {  // store y[0, tile*64, 0] = out
      u16* const to = y + (((thread) * 2) + tile * 64);
      if (0 < tokens) { *(Words1*)(to + 0) = {{out[0]}}; }
      if (1 < tokens) { *(Words1*)(to + 64) = {{out[1]}}; }
      if (2 < tokens) { *(Words1*)(to + 128) = {{out[2]}}; }
      if (3 < tokens) { *(Words1*)(to + 192) = {{out[3]}}; }
      if (4 < tokens) { *(Words1*)(to + 256) = {{out[4]}}; }
      if (5 < tokens) { *(Words1*)(to + 320) = {{out[5]}}; }
      if (6 < tokens) { *(Words1*)(to + 384) = {{out[6]}}; }
      if (7 < tokens) { *(Words1*)(to + 448) = {{out[7]}}; }
    }
  }
}
