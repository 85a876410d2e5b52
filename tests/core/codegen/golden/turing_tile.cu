// SPDX-License-Identifier: Apache-2.0
// y[m<=32, n=64] f16 = sum k=256: x[m, k] f16 * s[n, k/64] f16 * (u4[n, k] - 8)
// tile 64x32x64, warps 2x1, k-tiles 2, stages 2, ordered, multiply_add, 2 per multiprocessor
extern "C" __global__ void __launch_bounds__(64, 2)
linear_u4(const u32* __restrict__ weight, const u16* __restrict__ scales, u16* __restrict__ x, u16* __restrict__ y, float* __restrict__ workspace, u32* __restrict__ counters, u32 tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;
  u32* const ring = (u32*)(shared + 0);
  u16* const scale_ring = (u16*)(shared + 4096);
  u16* const x_ring = (u16*)(shared + 4352);
  float* const sums = (float*)(shared + 0);
  u32 arrived;
  u32 words[8];
  u32 scale_table[2];
  u32 scale[2];
  u32 a[8];
  u32 b[8];
  float acc[32];
  float total[32];
  float sum[32];
  float part[32];
  u32 out[16];
  {  // copy_async ring = weight[tile, split*1024]
    const u32 me = anew(thread);
    const u32 row = me / 128u, column = me % 128u * 4u;
    const u32 from_row = row + tile, from_column = column + split * 1024;
    const u32* const source = weight + ((u64)from_row * 2048u + from_column);
    const u32 target = shared_address(ring + row * 512u + column);
    copy_async(target + 0u, source + 0, from_row + 0u < 1u ? 16u : 0u);
    copy_async(target + 1024u, source + 256, from_row + 0u < 1u ? 16u : 0u);
  }
  {  // copy_async scale_ring = scales[split*2, tile*64]
    #pragma unroll
    for (u32 piece = thread; piece < 8u; piece += 64u) {
      const u32 row = piece / 8u, column = piece % 8u * 8u;
      const u32 from_row = row + split * 2, from_column = column + tile * 64;
      const bool inside = from_row < 4u;
      const u16* const source = scales + (inside ? (u64)from_row * 64u + from_column : 0u);
      copy_async(shared_address(scale_ring + row * 64u + column), source, inside ? 16u : 0u);
    }
  }
  {  // copy_async x_ring = x[0, split*128]
    const u32 me = anew(thread);
    const u32 row = me / 8u, column = me % 8u * 8u;
    const u32 from_row = row + 0, from_column = column + split * 128;
    const u16* const source = x + ((u64)from_row * 256u + from_column);
    const u32 target = shared_address(x_ring + row * 72u + column);
    copy_async(target + 0u, source + 0, from_row + 0u < tokens ? 16u : 0u);
    copy_async(target + 1152u, source + 2048, from_row + 8u < tokens ? 16u : 0u);
    copy_async(target + 2304u, source + 4096, from_row + 16u < tokens ? 16u : 0u);
    copy_async(target + 3456u, source + 6144, from_row + 24u < tokens ? 16u : 0u);
  }
  {  // commit
    copy_commit();
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
    total[16] = 0x0p+0f;
    total[17] = 0x0p+0f;
    total[18] = 0x0p+0f;
    total[19] = 0x0p+0f;
    total[20] = 0x0p+0f;
    total[21] = 0x0p+0f;
    total[22] = 0x0p+0f;
    total[23] = 0x0p+0f;
    total[24] = 0x0p+0f;
    total[25] = 0x0p+0f;
    total[26] = 0x0p+0f;
    total[27] = 0x0p+0f;
    total[28] = 0x0p+0f;
    total[29] = 0x0p+0f;
    total[30] = 0x0p+0f;
    total[31] = 0x0p+0f;
  }
  #pragma unroll 1
  for (u32 k_tile = 0; k_tile < 2; ++k_tile) {
    {  // wait pending<=0
      copy_wait<0>();
    }
    {  // barrier
      barrier();
    }
    {  // copy_async ring{(k_tile + 1)%2*512} = weight[tile, split*1024 + k_tile*512 + 512] while k_tile + 1 < 2
      if (k_tile + 1 < 2) {
      const u32 me = anew(thread);
      const u32 row = me / 128u, column = me % 128u * 4u;
      const u32 from_row = row + tile, from_column = column + split * 1024 + k_tile * 512 + 512;
      const u32* const source = weight + ((u64)from_row * 2048u + from_column);
      const u32 target = shared_address(ring + (((k_tile + 1) % 2u) * 512) + row * 512u + column);
      copy_async(target + 0u, source + 0, from_row + 0u < 1u && from_column + 0u < 2048u ? 16u : 0u);
      copy_async(target + 1024u, source + 256, from_row + 0u < 1u && from_column + 256u < 2048u ? 16u : 0u);
      }
    }
    {  // copy_async scale_ring{(k_tile + 1)%2*64} = scales[split*2 + k_tile + 1, tile*64] while k_tile + 1 < 2
      if (k_tile + 1 < 2) {
      #pragma unroll
      for (u32 piece = thread; piece < 8u; piece += 64u) {
        const u32 row = piece / 8u, column = piece % 8u * 8u;
        const u32 from_row = row + split * 2 + k_tile + 1, from_column = column + tile * 64;
        const bool inside = from_row < 4u;
        const u16* const source = scales + (inside ? (u64)from_row * 64u + from_column : 0u);
        copy_async(shared_address(scale_ring + (((k_tile + 1) % 2u) * 64) + row * 64u + column), source, inside ? 16u : 0u);
      }
      }
    }
    {  // copy_async x_ring{(k_tile + 1)%2*2304} = x[0, split*128 + k_tile*64 + 64] while k_tile + 1 < 2
      if (k_tile + 1 < 2) {
      const u32 me = anew(thread);
      const u32 row = me / 8u, column = me % 8u * 8u;
      const u32 from_row = row + 0, from_column = column + split * 128 + k_tile * 64 + 64;
      const u16* const source = x + ((u64)from_row * 256u + from_column);
      const u32 target = shared_address(x_ring + (((k_tile + 1) % 2u) * 2304) + row * 72u + column);
      copy_async(target + 0u, source + 0, from_row + 0u < tokens && from_column + 0u < 256u ? 16u : 0u);
      copy_async(target + 1152u, source + 2048, from_row + 8u < tokens && from_column + 0u < 256u ? 16u : 0u);
      copy_async(target + 2304u, source + 4096, from_row + 16u < tokens && from_column + 0u < 256u ? 16u : 0u);
      copy_async(target + 3456u, source + 6144, from_row + 24u < tokens && from_column + 0u < 256u ? 16u : 0u);
      }
    }
    {  // commit
      copy_commit();
    }
    {  // scale_table = load scale_ring[k_tile%2, 0, 0, 0, 0]
      const u16* const from = scale_ring + (((thread / 4 % 8) * 8) + ((thread / 32) * 4) + (k_tile % 2u) * 64);
      { Words2 v; v = *(const Words2*)(from + 0); scale_table[0] = v.w[0]; scale_table[1] = v.w[1]; }
    }
    {  // scale = view scale_table
      scale[0] = scale_table[0];
      scale[1] = scale_table[1];
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
      acc[16] = 0x0p+0f;
      acc[17] = 0x0p+0f;
      acc[18] = 0x0p+0f;
      acc[19] = 0x0p+0f;
      acc[20] = 0x0p+0f;
      acc[21] = 0x0p+0f;
      acc[22] = 0x0p+0f;
      acc[23] = 0x0p+0f;
      acc[24] = 0x0p+0f;
      acc[25] = 0x0p+0f;
      acc[26] = 0x0p+0f;
      acc[27] = 0x0p+0f;
      acc[28] = 0x0p+0f;
      acc[29] = 0x0p+0f;
      acc[30] = 0x0p+0f;
      acc[31] = 0x0p+0f;
    }
    // block = 0
    {  // words = load ring[k_tile%2, group, 0, 0, 0]
      const u32* const from = ring + (((thread / 32) * 256) + ((thread % 32) * 4) + (k_tile % 2u) * 512);
      { Words4 v; v = *(const Words4*)(from + 0); words[0] = v.w[0]; words[1] = v.w[1]; words[2] = v.w[2]; words[3] = v.w[3]; }
      { Words4 v; v = *(const Words4*)(from + 128); words[4] = v.w[0]; words[5] = v.w[1]; words[6] = v.w[2]; words[7] = v.w[3]; }
    }
    // step = 0
    {  // b = load_matrix x_ring[0, k_tile%2*32, group*64 + step*16]
      const u32 lane = thread % 32;
      load_matrix<4>(b + 0, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 0) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304)));
      load_matrix<4>(b + 4, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 16) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304)));
    }
    {  // a = unpack u4 words block 0 step step - 8 times 2^-9
      a[0] = fma_f16((words[0] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[0] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[0] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[0] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[4] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[4] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[4] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[4] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 0, b + 2);
      mma_f16(acc + 8, a + 0, b + 4);
      mma_f16(acc + 12, a + 0, b + 6);
      mma_f16(acc + 16, a + 4, b + 0);
      mma_f16(acc + 20, a + 4, b + 2);
      mma_f16(acc + 24, a + 4, b + 4);
      mma_f16(acc + 28, a + 4, b + 6);
    }
    // step = 1
    {  // b = load_matrix x_ring[0, k_tile%2*32, group*64 + step*16]
      const u32 lane = thread % 32;
      load_matrix<4>(b + 0, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 0) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304 + 16)));
      load_matrix<4>(b + 4, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 16) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304 + 16)));
    }
    {  // a = unpack u4 words block 0 step step - 8 times 2^-9
      a[0] = fma_f16((words[1] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[1] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[1] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[1] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[5] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[5] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[5] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[5] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 0, b + 2);
      mma_f16(acc + 8, a + 0, b + 4);
      mma_f16(acc + 12, a + 0, b + 6);
      mma_f16(acc + 16, a + 4, b + 0);
      mma_f16(acc + 20, a + 4, b + 2);
      mma_f16(acc + 24, a + 4, b + 4);
      mma_f16(acc + 28, a + 4, b + 6);
    }
    // step = 2
    {  // b = load_matrix x_ring[0, k_tile%2*32, group*64 + step*16]
      const u32 lane = thread % 32;
      load_matrix<4>(b + 0, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 0) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304 + 32)));
      load_matrix<4>(b + 4, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 16) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304 + 32)));
    }
    {  // a = unpack u4 words block 0 step step - 8 times 2^-9
      a[0] = fma_f16((words[2] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[2] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[2] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[2] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[6] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[6] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[6] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[6] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 0, b + 2);
      mma_f16(acc + 8, a + 0, b + 4);
      mma_f16(acc + 12, a + 0, b + 6);
      mma_f16(acc + 16, a + 4, b + 0);
      mma_f16(acc + 20, a + 4, b + 2);
      mma_f16(acc + 24, a + 4, b + 4);
      mma_f16(acc + 28, a + 4, b + 6);
    }
    // step = 3
    {  // b = load_matrix x_ring[0, k_tile%2*32, group*64 + step*16]
      const u32 lane = thread % 32;
      load_matrix<4>(b + 0, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 0) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304 + 48)));
      load_matrix<4>(b + 4, shared_address(x_ring + ((lane / 16 % 2 * 8 + lane % 8 + 16) * 72 + lane / 8 % 2 * 8 + (k_tile % 2u) * 2304 + 48)));
    }
    {  // a = unpack u4 words block 0 step step - 8 times 2^-9
      a[0] = fma_f16((words[3] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[3] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[3] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[3] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[7] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[7] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[7] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[7] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 0, b + 2);
      mma_f16(acc + 8, a + 0, b + 4);
      mma_f16(acc + 12, a + 0, b + 6);
      mma_f16(acc + 16, a + 4, b + 0);
      mma_f16(acc + 20, a + 4, b + 2);
      mma_f16(acc + 24, a + 4, b + 4);
      mma_f16(acc + 28, a + 4, b + 6);
    }
    {  // total += acc * scale[group] * 2^9
      const float s0 = low_f16(scale[0]) * 0x1p+9f;
      total[0] += acc[0] * s0;
      total[1] += acc[1] * s0;
      const float s1 = high_f16(scale[0]) * 0x1p+9f;
      total[2] += acc[2] * s1;
      total[3] += acc[3] * s1;
      total[4] += acc[4] * s0;
      total[5] += acc[5] * s0;
      total[6] += acc[6] * s1;
      total[7] += acc[7] * s1;
      total[8] += acc[8] * s0;
      total[9] += acc[9] * s0;
      total[10] += acc[10] * s1;
      total[11] += acc[11] * s1;
      total[12] += acc[12] * s0;
      total[13] += acc[13] * s0;
      total[14] += acc[14] * s1;
      total[15] += acc[15] * s1;
      const float s2 = low_f16(scale[1]) * 0x1p+9f;
      total[16] += acc[16] * s2;
      total[17] += acc[17] * s2;
      const float s3 = high_f16(scale[1]) * 0x1p+9f;
      total[18] += acc[18] * s3;
      total[19] += acc[19] * s3;
      total[20] += acc[20] * s2;
      total[21] += acc[21] * s2;
      total[22] += acc[22] * s3;
      total[23] += acc[23] * s3;
      total[24] += acc[24] * s2;
      total[25] += acc[25] * s2;
      total[26] += acc[26] * s3;
      total[27] += acc[27] * s3;
      total[28] += acc[28] * s2;
      total[29] += acc[29] * s2;
      total[30] += acc[30] * s3;
      total[31] += acc[31] * s3;
    }
  }
  {  // barrier
    barrier();
  }
  {  // store sums[0, 0, 0] = total
    float* const to = sums + (((thread / 32) * 32) + (thread / 4 % 8) + ((thread % 4) * 136));
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 0) = {{as_bits(total[0])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 68) = {{as_bits(total[1])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 8) = {{as_bits(total[2])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 76) = {{as_bits(total[3])}}; }
    if (((thread % 4) * 2) + 8 < tokens) { *(Words1*)(to + 544) = {{as_bits(total[4])}}; }
    if (((thread % 4) * 2) + 9 < tokens) { *(Words1*)(to + 612) = {{as_bits(total[5])}}; }
    if (((thread % 4) * 2) + 8 < tokens) { *(Words1*)(to + 552) = {{as_bits(total[6])}}; }
    if (((thread % 4) * 2) + 9 < tokens) { *(Words1*)(to + 620) = {{as_bits(total[7])}}; }
    if (((thread % 4) * 2) + 16 < tokens) { *(Words1*)(to + 1088) = {{as_bits(total[8])}}; }
    if (((thread % 4) * 2) + 17 < tokens) { *(Words1*)(to + 1156) = {{as_bits(total[9])}}; }
    if (((thread % 4) * 2) + 16 < tokens) { *(Words1*)(to + 1096) = {{as_bits(total[10])}}; }
    if (((thread % 4) * 2) + 17 < tokens) { *(Words1*)(to + 1164) = {{as_bits(total[11])}}; }
    if (((thread % 4) * 2) + 24 < tokens) { *(Words1*)(to + 1632) = {{as_bits(total[12])}}; }
    if (((thread % 4) * 2) + 25 < tokens) { *(Words1*)(to + 1700) = {{as_bits(total[13])}}; }
    if (((thread % 4) * 2) + 24 < tokens) { *(Words1*)(to + 1640) = {{as_bits(total[14])}}; }
    if (((thread % 4) * 2) + 25 < tokens) { *(Words1*)(to + 1708) = {{as_bits(total[15])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 16) = {{as_bits(total[16])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 84) = {{as_bits(total[17])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 24) = {{as_bits(total[18])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 92) = {{as_bits(total[19])}}; }
    if (((thread % 4) * 2) + 8 < tokens) { *(Words1*)(to + 560) = {{as_bits(total[20])}}; }
    if (((thread % 4) * 2) + 9 < tokens) { *(Words1*)(to + 628) = {{as_bits(total[21])}}; }
    if (((thread % 4) * 2) + 8 < tokens) { *(Words1*)(to + 568) = {{as_bits(total[22])}}; }
    if (((thread % 4) * 2) + 9 < tokens) { *(Words1*)(to + 636) = {{as_bits(total[23])}}; }
    if (((thread % 4) * 2) + 16 < tokens) { *(Words1*)(to + 1104) = {{as_bits(total[24])}}; }
    if (((thread % 4) * 2) + 17 < tokens) { *(Words1*)(to + 1172) = {{as_bits(total[25])}}; }
    if (((thread % 4) * 2) + 16 < tokens) { *(Words1*)(to + 1112) = {{as_bits(total[26])}}; }
    if (((thread % 4) * 2) + 17 < tokens) { *(Words1*)(to + 1180) = {{as_bits(total[27])}}; }
    if (((thread % 4) * 2) + 24 < tokens) { *(Words1*)(to + 1648) = {{as_bits(total[28])}}; }
    if (((thread % 4) * 2) + 25 < tokens) { *(Words1*)(to + 1716) = {{as_bits(total[29])}}; }
    if (((thread % 4) * 2) + 24 < tokens) { *(Words1*)(to + 1656) = {{as_bits(total[30])}}; }
    if (((thread % 4) * 2) + 25 < tokens) { *(Words1*)(to + 1724) = {{as_bits(total[31])}}; }
  }
  {  // barrier
    barrier();
  }
  if (thread / 32 + 0 < tokens) {  // within sums[0, 0, 0] by sum
    {  // sum = load sums[0, 0, 0]
      const float* const from = sums + (((thread % 32) * 2) + ((thread / 32) * 68));
      { Words2 v = {}; if (thread / 32 + 0 < tokens) { v = *(const Words2*)(from + 0); } sum[0] = as_float(v.w[0]); sum[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 2 < tokens) { v = *(const Words2*)(from + 136); } sum[2] = as_float(v.w[0]); sum[3] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 4 < tokens) { v = *(const Words2*)(from + 272); } sum[4] = as_float(v.w[0]); sum[5] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 6 < tokens) { v = *(const Words2*)(from + 408); } sum[6] = as_float(v.w[0]); sum[7] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 8 < tokens) { v = *(const Words2*)(from + 544); } sum[8] = as_float(v.w[0]); sum[9] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 10 < tokens) { v = *(const Words2*)(from + 680); } sum[10] = as_float(v.w[0]); sum[11] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 12 < tokens) { v = *(const Words2*)(from + 816); } sum[12] = as_float(v.w[0]); sum[13] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 14 < tokens) { v = *(const Words2*)(from + 952); } sum[14] = as_float(v.w[0]); sum[15] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 16 < tokens) { v = *(const Words2*)(from + 1088); } sum[16] = as_float(v.w[0]); sum[17] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 18 < tokens) { v = *(const Words2*)(from + 1224); } sum[18] = as_float(v.w[0]); sum[19] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 20 < tokens) { v = *(const Words2*)(from + 1360); } sum[20] = as_float(v.w[0]); sum[21] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 22 < tokens) { v = *(const Words2*)(from + 1496); } sum[22] = as_float(v.w[0]); sum[23] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 24 < tokens) { v = *(const Words2*)(from + 1632); } sum[24] = as_float(v.w[0]); sum[25] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 26 < tokens) { v = *(const Words2*)(from + 1768); } sum[26] = as_float(v.w[0]); sum[27] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 28 < tokens) { v = *(const Words2*)(from + 1904); } sum[28] = as_float(v.w[0]); sum[29] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 30 < tokens) { v = *(const Words2*)(from + 2040); } sum[30] = as_float(v.w[0]); sum[31] = as_float(v.w[1]); }
    }
    {  // store workspace[tile*2 + split, 0, 0] = sum
      float* const to = workspace + (((thread % 32) * 2) + ((thread / 32) * 64) + tile * 4096 + split * 2048);
      if (thread / 32 + 0 < tokens) { *(Words2*)(to + 0) = {{as_bits(sum[0]), as_bits(sum[1])}}; }
      if (thread / 32 + 2 < tokens) { *(Words2*)(to + 128) = {{as_bits(sum[2]), as_bits(sum[3])}}; }
      if (thread / 32 + 4 < tokens) { *(Words2*)(to + 256) = {{as_bits(sum[4]), as_bits(sum[5])}}; }
      if (thread / 32 + 6 < tokens) { *(Words2*)(to + 384) = {{as_bits(sum[6]), as_bits(sum[7])}}; }
      if (thread / 32 + 8 < tokens) { *(Words2*)(to + 512) = {{as_bits(sum[8]), as_bits(sum[9])}}; }
      if (thread / 32 + 10 < tokens) { *(Words2*)(to + 640) = {{as_bits(sum[10]), as_bits(sum[11])}}; }
      if (thread / 32 + 12 < tokens) { *(Words2*)(to + 768) = {{as_bits(sum[12]), as_bits(sum[13])}}; }
      if (thread / 32 + 14 < tokens) { *(Words2*)(to + 896) = {{as_bits(sum[14]), as_bits(sum[15])}}; }
      if (thread / 32 + 16 < tokens) { *(Words2*)(to + 1024) = {{as_bits(sum[16]), as_bits(sum[17])}}; }
      if (thread / 32 + 18 < tokens) { *(Words2*)(to + 1152) = {{as_bits(sum[18]), as_bits(sum[19])}}; }
      if (thread / 32 + 20 < tokens) { *(Words2*)(to + 1280) = {{as_bits(sum[20]), as_bits(sum[21])}}; }
      if (thread / 32 + 22 < tokens) { *(Words2*)(to + 1408) = {{as_bits(sum[22]), as_bits(sum[23])}}; }
      if (thread / 32 + 24 < tokens) { *(Words2*)(to + 1536) = {{as_bits(sum[24]), as_bits(sum[25])}}; }
      if (thread / 32 + 26 < tokens) { *(Words2*)(to + 1664) = {{as_bits(sum[26]), as_bits(sum[27])}}; }
      if (thread / 32 + 28 < tokens) { *(Words2*)(to + 1792) = {{as_bits(sum[28]), as_bits(sum[29])}}; }
      if (thread / 32 + 30 < tokens) { *(Words2*)(to + 1920) = {{as_bits(sum[30]), as_bits(sum[31])}}; }
    }
  }
  {  // arrived = ticket counters[tile] of 2
    __shared__ u32 before;
    arrived = ticket(counters + tile, 2u, &before);
  }
  if (arrived == 1) {
    {  // sum = load workspace[tile*2, 0, 0]
      const float* const from = workspace + (((thread % 32) * 2) + ((thread / 32) * 64) + tile * 4096);
      { Words2 v = {}; if (thread / 32 + 0 < tokens) { v = load_fresh((const Words2*)(from + 0)); } sum[0] = as_float(v.w[0]); sum[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 2 < tokens) { v = load_fresh((const Words2*)(from + 128)); } sum[2] = as_float(v.w[0]); sum[3] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 4 < tokens) { v = load_fresh((const Words2*)(from + 256)); } sum[4] = as_float(v.w[0]); sum[5] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 6 < tokens) { v = load_fresh((const Words2*)(from + 384)); } sum[6] = as_float(v.w[0]); sum[7] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 8 < tokens) { v = load_fresh((const Words2*)(from + 512)); } sum[8] = as_float(v.w[0]); sum[9] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 10 < tokens) { v = load_fresh((const Words2*)(from + 640)); } sum[10] = as_float(v.w[0]); sum[11] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 12 < tokens) { v = load_fresh((const Words2*)(from + 768)); } sum[12] = as_float(v.w[0]); sum[13] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 14 < tokens) { v = load_fresh((const Words2*)(from + 896)); } sum[14] = as_float(v.w[0]); sum[15] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 16 < tokens) { v = load_fresh((const Words2*)(from + 1024)); } sum[16] = as_float(v.w[0]); sum[17] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 18 < tokens) { v = load_fresh((const Words2*)(from + 1152)); } sum[18] = as_float(v.w[0]); sum[19] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 20 < tokens) { v = load_fresh((const Words2*)(from + 1280)); } sum[20] = as_float(v.w[0]); sum[21] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 22 < tokens) { v = load_fresh((const Words2*)(from + 1408)); } sum[22] = as_float(v.w[0]); sum[23] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 24 < tokens) { v = load_fresh((const Words2*)(from + 1536)); } sum[24] = as_float(v.w[0]); sum[25] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 26 < tokens) { v = load_fresh((const Words2*)(from + 1664)); } sum[26] = as_float(v.w[0]); sum[27] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 28 < tokens) { v = load_fresh((const Words2*)(from + 1792)); } sum[28] = as_float(v.w[0]); sum[29] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 30 < tokens) { v = load_fresh((const Words2*)(from + 1920)); } sum[30] = as_float(v.w[0]); sum[31] = as_float(v.w[1]); }
    }
    #pragma unroll 16
    for (u32 earlier = 0; earlier < 1; ++earlier) {
      {  // part = load workspace[tile*2 + earlier + 1, 0, 0]
        const float* const from = workspace + (((thread % 32) * 2) + ((thread / 32) * 64) + tile * 4096 + earlier * 2048 + 2048);
        { Words2 v = {}; if (thread / 32 + 0 < tokens) { v = load_fresh((const Words2*)(from + 0)); } part[0] = as_float(v.w[0]); part[1] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 2 < tokens) { v = load_fresh((const Words2*)(from + 128)); } part[2] = as_float(v.w[0]); part[3] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 4 < tokens) { v = load_fresh((const Words2*)(from + 256)); } part[4] = as_float(v.w[0]); part[5] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 6 < tokens) { v = load_fresh((const Words2*)(from + 384)); } part[6] = as_float(v.w[0]); part[7] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 8 < tokens) { v = load_fresh((const Words2*)(from + 512)); } part[8] = as_float(v.w[0]); part[9] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 10 < tokens) { v = load_fresh((const Words2*)(from + 640)); } part[10] = as_float(v.w[0]); part[11] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 12 < tokens) { v = load_fresh((const Words2*)(from + 768)); } part[12] = as_float(v.w[0]); part[13] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 14 < tokens) { v = load_fresh((const Words2*)(from + 896)); } part[14] = as_float(v.w[0]); part[15] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 16 < tokens) { v = load_fresh((const Words2*)(from + 1024)); } part[16] = as_float(v.w[0]); part[17] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 18 < tokens) { v = load_fresh((const Words2*)(from + 1152)); } part[18] = as_float(v.w[0]); part[19] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 20 < tokens) { v = load_fresh((const Words2*)(from + 1280)); } part[20] = as_float(v.w[0]); part[21] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 22 < tokens) { v = load_fresh((const Words2*)(from + 1408)); } part[22] = as_float(v.w[0]); part[23] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 24 < tokens) { v = load_fresh((const Words2*)(from + 1536)); } part[24] = as_float(v.w[0]); part[25] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 26 < tokens) { v = load_fresh((const Words2*)(from + 1664)); } part[26] = as_float(v.w[0]); part[27] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 28 < tokens) { v = load_fresh((const Words2*)(from + 1792)); } part[28] = as_float(v.w[0]); part[29] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 30 < tokens) { v = load_fresh((const Words2*)(from + 1920)); } part[30] = as_float(v.w[0]); part[31] = as_float(v.w[1]); }
      }
      {  // sum += part
        sum[0] += part[0];
        sum[1] += part[1];
        sum[2] += part[2];
        sum[3] += part[3];
        sum[4] += part[4];
        sum[5] += part[5];
        sum[6] += part[6];
        sum[7] += part[7];
        sum[8] += part[8];
        sum[9] += part[9];
        sum[10] += part[10];
        sum[11] += part[11];
        sum[12] += part[12];
        sum[13] += part[13];
        sum[14] += part[14];
        sum[15] += part[15];
        sum[16] += part[16];
        sum[17] += part[17];
        sum[18] += part[18];
        sum[19] += part[19];
        sum[20] += part[20];
        sum[21] += part[21];
        sum[22] += part[22];
        sum[23] += part[23];
        sum[24] += part[24];
        sum[25] += part[25];
        sum[26] += part[26];
        sum[27] += part[27];
        sum[28] += part[28];
        sum[29] += part[29];
        sum[30] += part[30];
        sum[31] += part[31];
      }
    }
    {  // out = cast sum
      out[0] = pack_f16(sum[0], sum[1]);
      out[1] = pack_f16(sum[2], sum[3]);
      out[2] = pack_f16(sum[4], sum[5]);
      out[3] = pack_f16(sum[6], sum[7]);
      out[4] = pack_f16(sum[8], sum[9]);
      out[5] = pack_f16(sum[10], sum[11]);
      out[6] = pack_f16(sum[12], sum[13]);
      out[7] = pack_f16(sum[14], sum[15]);
      out[8] = pack_f16(sum[16], sum[17]);
      out[9] = pack_f16(sum[18], sum[19]);
      out[10] = pack_f16(sum[20], sum[21]);
      out[11] = pack_f16(sum[22], sum[23]);
      out[12] = pack_f16(sum[24], sum[25]);
      out[13] = pack_f16(sum[26], sum[27]);
      out[14] = pack_f16(sum[28], sum[29]);
      out[15] = pack_f16(sum[30], sum[31]);
    }
    {  // store y[0, tile*64, 0] = out
      u16* const to = y + (((thread % 32) * 2) + ((thread / 32) * 64) + tile * 64);
      if (thread / 32 + 0 < tokens) { *(Words1*)(to + 0) = {{out[0]}}; }
      if (thread / 32 + 2 < tokens) { *(Words1*)(to + 128) = {{out[1]}}; }
      if (thread / 32 + 4 < tokens) { *(Words1*)(to + 256) = {{out[2]}}; }
      if (thread / 32 + 6 < tokens) { *(Words1*)(to + 384) = {{out[3]}}; }
      if (thread / 32 + 8 < tokens) { *(Words1*)(to + 512) = {{out[4]}}; }
      if (thread / 32 + 10 < tokens) { *(Words1*)(to + 640) = {{out[5]}}; }
      if (thread / 32 + 12 < tokens) { *(Words1*)(to + 768) = {{out[6]}}; }
      if (thread / 32 + 14 < tokens) { *(Words1*)(to + 896) = {{out[7]}}; }
      if (thread / 32 + 16 < tokens) { *(Words1*)(to + 1024) = {{out[8]}}; }
      if (thread / 32 + 18 < tokens) { *(Words1*)(to + 1152) = {{out[9]}}; }
      if (thread / 32 + 20 < tokens) { *(Words1*)(to + 1280) = {{out[10]}}; }
      if (thread / 32 + 22 < tokens) { *(Words1*)(to + 1408) = {{out[11]}}; }
      if (thread / 32 + 24 < tokens) { *(Words1*)(to + 1536) = {{out[12]}}; }
      if (thread / 32 + 26 < tokens) { *(Words1*)(to + 1664) = {{out[13]}}; }
      if (thread / 32 + 28 < tokens) { *(Words1*)(to + 1792) = {{out[14]}}; }
      if (thread / 32 + 30 < tokens) { *(Words1*)(to + 1920) = {{out[15]}}; }
    }
  }
}
