// SPDX-License-Identifier: Apache-2.0
// y[m<=8, n=128] f16 = sum k=512: x[m, k] f16 * s[n, k/128] f16 * (u4[n, k] - 8)
// tokens 8, warps 2x1, blocks 1, k-tiles 4, stages 2, cluster, in_place, 2 per multiprocessor
extern "C" __global__ void __launch_bounds__(64, 2) __cluster_dims__(2, 1, 1)
linear_u4(const u32* __restrict__ weight, const u16* __restrict__ scales, u16* __restrict__ x, u16* __restrict__ y, u32 tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;
  const u32 rank = cluster_rank();
  u32* const ring = (u32*)(shared + 0);
  u16* const scale_ring = (u16*)(shared + 8192);
  u16* const x_tile = (u16*)(shared + 10240);
  float* const sums = (float*)(shared + 0);
  u32 words[16];
  u32 scale_table[4];
  u32 scale[4];
  u32 a[16];
  u32 b[2];
  float acc[16];
  float total[16];
  u32 zero[4];
  float zero_sum[4];
  float sum[8];
  float part[8];
  u32 out[4];
  {  // copy_async x_tile = x[0, split*256]
    const u32 me = anew(thread);
    const u32 row = me / 32u, column = me % 32u * 8u;
    const u32 from_row = row + 0, from_column = column + split * 256;
    const u16* const source = x + ((u64)from_row * 512u + from_column);
    const u32 target = shared_address(x_tile + row * 264u + column);
    copy_async(target + 0u, source + 0, from_row + 0u < tokens ? 16u : 0u);
    copy_async(target + 1056u, source + 1024, from_row + 2u < tokens ? 16u : 0u);
    copy_async(target + 2112u, source + 2048, from_row + 4u < tokens ? 16u : 0u);
    copy_async(target + 3168u, source + 3072, from_row + 6u < tokens ? 16u : 0u);
  }
  {  // commit
    copy_commit();
  }
  {  // copy_own ring[0, 0, 0, 0, 0] = weight[tile*2, split*4, 0, 0, 0] while 0 < 4
    if (0 < 4) {
      const u32* const from = weight + (((thread / 32) * 4096) + ((thread % 32) * 4) + tile * 8192 + split * 2048);
      const u32 to = shared_address(ring + (((thread / 32) * 512) + ((thread % 32) * 4)));
      copy_async(to + 0u, from + 0, 16u);
      copy_async(to + 512u, from + 128, 16u);
      copy_async(to + 1024u, from + 256, 16u);
      copy_async(to + 1536u, from + 384, 16u);
    }
  }
  {  // copy_own scale_ring[0, 0, 0, 0, 0] = scales[split*2, tile*2, 0, 0, 0] while 0 < 4
    if (0 < 4) {
      const u16* const from = scales + (((thread / 32) * 64) + ((thread / 4 % 8) * 8) + split * 256 + tile * 128);
      const u32 to = shared_address(scale_ring + (((thread / 32) * 256) + ((thread / 4 % 8) * 32) + ((thread % 4) * 8)));
      copy_async(to + 0u, from + 0, 16u);
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
  {  // zero = -4.76837e-07|-7.62939e-06
    zero[0] = 0x80088008u;
    zero[1] = 0x80808080u;
    zero[2] = 0x80088008u;
    zero[3] = 0x80808080u;
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
  for (u32 k_tile = 0; k_tile < 4; ++k_tile) {
    {  // wait pending<=0
      copy_wait<0>();
    }
    {  // words = load ring[k_tile%2*2, 0, 0, 0, 0]
      const u32* const from = ring + (((thread / 32) * 512) + ((thread % 32) * 4) + (k_tile % 2u) * 1024);
      { Words4 v; v = *(const Words4*)(from + 0); words[0] = v.w[0]; words[1] = v.w[1]; words[2] = v.w[2]; words[3] = v.w[3]; }
      { Words4 v; v = *(const Words4*)(from + 128); words[4] = v.w[0]; words[5] = v.w[1]; words[6] = v.w[2]; words[7] = v.w[3]; }
      { Words4 v; v = *(const Words4*)(from + 256); words[8] = v.w[0]; words[9] = v.w[1]; words[10] = v.w[2]; words[11] = v.w[3]; }
      { Words4 v; v = *(const Words4*)(from + 384); words[12] = v.w[0]; words[13] = v.w[1]; words[14] = v.w[2]; words[15] = v.w[3]; }
    }
    {  // scale_table = load scale_ring[0, k_tile%2*2, 0, 0, 0]
      const u16* const from = scale_ring + (((thread / 32) * 256) + ((thread / 4 % 8) * 32) + ((thread % 4) * 8) + (k_tile % 2u) * 512);
      { Words4 v; v = *(const Words4*)(from + 0); scale_table[0] = v.w[0]; scale_table[1] = v.w[1]; scale_table[2] = v.w[2]; scale_table[3] = v.w[3]; }
    }
    {  // scale = view scale_table
      scale[0] = scale_table[0];
      scale[1] = scale_table[1];
      scale[2] = scale_table[2];
      scale[3] = scale_table[3];
    }
    {  // copy_own ring[(k_tile + 1)%2*2, 0, 0, 0, 0] = weight[tile*2, split*4 + k_tile + 1, 0, 0, 0] while k_tile + 1 < 4
      if (k_tile + 1 < 4) {
        const u32* const from = weight + (((thread / 32) * 4096) + ((thread % 32) * 4) + tile * 8192 + split * 2048 + k_tile * 512 + 512);
        const u32 to = shared_address(ring + (((thread / 32) * 512) + ((thread % 32) * 4) + ((k_tile + 1) % 2u) * 1024));
        copy_async(to + 0u, from + 0, split * 4 + k_tile + 1 < 8u ? 16u : 0u);
        copy_async(to + 512u, from + 128, split * 4 + k_tile + 1 < 8u ? 16u : 0u);
        copy_async(to + 1024u, from + 256, split * 4 + k_tile + 1 < 8u ? 16u : 0u);
        copy_async(to + 1536u, from + 384, split * 4 + k_tile + 1 < 8u ? 16u : 0u);
      }
    }
    {  // copy_own scale_ring[0, (k_tile + 1)%2*2, 0, 0, 0] = scales[split*2 + (k_tile + 1)/2, tile*2, 0, 0, 0] while k_tile + 1 < 4
      if (k_tile + 1 < 4) {
        const u16* const from = scales + (((thread / 32) * 64) + ((thread / 4 % 8) * 8) + split * 256 + ((k_tile + 1) / 2) * 128 + tile * 128);
        const u32 to = shared_address(scale_ring + (((thread / 32) * 256) + ((thread / 4 % 8) * 32) + ((thread % 4) * 8) + ((k_tile + 1) % 2u) * 512));
        copy_async(to + 0u, from + 0, split * 2 + ((k_tile + 1) / 2) < 4u ? 16u : 0u);
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
    {  // zero_sum = 0
      zero_sum[0] = 0x0p+0f;
      zero_sum[1] = 0x0p+0f;
      zero_sum[2] = 0x0p+0f;
      zero_sum[3] = 0x0p+0f;
    }
    // step = 0
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 64)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 in place
      a[0] = (words[0] & 0x000f000fu);
      a[1] = (words[0] & 0x00f000f0u);
      a[2] = ((words[0] >> 8) & 0x000f000fu);
      a[3] = ((words[0] >> 8) & 0x00f000f0u);
      a[4] = (words[4] & 0x000f000fu);
      a[5] = (words[4] & 0x00f000f0u);
      a[6] = ((words[4] >> 8) & 0x000f000fu);
      a[7] = ((words[4] >> 8) & 0x00f000f0u);
      a[8] = (words[8] & 0x000f000fu);
      a[9] = (words[8] & 0x00f000f0u);
      a[10] = ((words[8] >> 8) & 0x000f000fu);
      a[11] = ((words[8] >> 8) & 0x00f000f0u);
      a[12] = (words[12] & 0x000f000fu);
      a[13] = (words[12] & 0x00f000f0u);
      a[14] = ((words[12] >> 8) & 0x000f000fu);
      a[15] = ((words[12] >> 8) & 0x00f000f0u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    {  // zero_sum += mma zero, b
      mma_f16(zero_sum + 0, zero + 0, b + 0);
    }
    // step = 1
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 64 + 16)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 in place
      a[0] = (words[1] & 0x000f000fu);
      a[1] = (words[1] & 0x00f000f0u);
      a[2] = ((words[1] >> 8) & 0x000f000fu);
      a[3] = ((words[1] >> 8) & 0x00f000f0u);
      a[4] = (words[5] & 0x000f000fu);
      a[5] = (words[5] & 0x00f000f0u);
      a[6] = ((words[5] >> 8) & 0x000f000fu);
      a[7] = ((words[5] >> 8) & 0x00f000f0u);
      a[8] = (words[9] & 0x000f000fu);
      a[9] = (words[9] & 0x00f000f0u);
      a[10] = ((words[9] >> 8) & 0x000f000fu);
      a[11] = ((words[9] >> 8) & 0x00f000f0u);
      a[12] = (words[13] & 0x000f000fu);
      a[13] = (words[13] & 0x00f000f0u);
      a[14] = ((words[13] >> 8) & 0x000f000fu);
      a[15] = ((words[13] >> 8) & 0x00f000f0u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    {  // zero_sum += mma zero, b
      mma_f16(zero_sum + 0, zero + 0, b + 0);
    }
    // step = 2
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 64 + 32)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 in place
      a[0] = (words[2] & 0x000f000fu);
      a[1] = (words[2] & 0x00f000f0u);
      a[2] = ((words[2] >> 8) & 0x000f000fu);
      a[3] = ((words[2] >> 8) & 0x00f000f0u);
      a[4] = (words[6] & 0x000f000fu);
      a[5] = (words[6] & 0x00f000f0u);
      a[6] = ((words[6] >> 8) & 0x000f000fu);
      a[7] = ((words[6] >> 8) & 0x00f000f0u);
      a[8] = (words[10] & 0x000f000fu);
      a[9] = (words[10] & 0x00f000f0u);
      a[10] = ((words[10] >> 8) & 0x000f000fu);
      a[11] = ((words[10] >> 8) & 0x00f000f0u);
      a[12] = (words[14] & 0x000f000fu);
      a[13] = (words[14] & 0x00f000f0u);
      a[14] = ((words[14] >> 8) & 0x000f000fu);
      a[15] = ((words[14] >> 8) & 0x00f000f0u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    {  // zero_sum += mma zero, b
      mma_f16(zero_sum + 0, zero + 0, b + 0);
    }
    // step = 3
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*64]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 64 + 48)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 in place
      a[0] = (words[3] & 0x000f000fu);
      a[1] = (words[3] & 0x00f000f0u);
      a[2] = ((words[3] >> 8) & 0x000f000fu);
      a[3] = ((words[3] >> 8) & 0x00f000f0u);
      a[4] = (words[7] & 0x000f000fu);
      a[5] = (words[7] & 0x00f000f0u);
      a[6] = ((words[7] >> 8) & 0x000f000fu);
      a[7] = ((words[7] >> 8) & 0x00f000f0u);
      a[8] = (words[11] & 0x000f000fu);
      a[9] = (words[11] & 0x00f000f0u);
      a[10] = ((words[11] >> 8) & 0x000f000fu);
      a[11] = ((words[11] >> 8) & 0x00f000f0u);
      a[12] = (words[15] & 0x000f000fu);
      a[13] = (words[15] & 0x00f000f0u);
      a[14] = ((words[15] >> 8) & 0x000f000fu);
      a[15] = ((words[15] >> 8) & 0x00f000f0u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    {  // zero_sum += mma zero, b
      mma_f16(zero_sum + 0, zero + 0, b + 0);
    }
    {  // acc += zero_sum
      acc[0] += zero_sum[0];
      acc[1] += zero_sum[1];
      acc[2] += zero_sum[2];
      acc[3] += zero_sum[3];
      acc[4] += zero_sum[0];
      acc[5] += zero_sum[1];
      acc[6] += zero_sum[2];
      acc[7] += zero_sum[3];
      acc[8] += zero_sum[0];
      acc[9] += zero_sum[1];
      acc[10] += zero_sum[2];
      acc[11] += zero_sum[3];
      acc[12] += zero_sum[0];
      acc[13] += zero_sum[1];
      acc[14] += zero_sum[2];
      acc[15] += zero_sum[3];
    }
    {  // total += acc * scale[group] * 2^24|2^20
      const float s0 = low_f16(scale[0]) * 0x1p+24f;
      total[0] += acc[0] * s0;
      total[1] += acc[1] * s0;
      const float s1 = high_f16(scale[0]) * 0x1p+20f;
      total[2] += acc[2] * s1;
      total[3] += acc[3] * s1;
      const float s2 = low_f16(scale[1]) * 0x1p+24f;
      total[4] += acc[4] * s2;
      total[5] += acc[5] * s2;
      const float s3 = high_f16(scale[1]) * 0x1p+20f;
      total[6] += acc[6] * s3;
      total[7] += acc[7] * s3;
      const float s4 = low_f16(scale[2]) * 0x1p+24f;
      total[8] += acc[8] * s4;
      total[9] += acc[9] * s4;
      const float s5 = high_f16(scale[2]) * 0x1p+20f;
      total[10] += acc[10] * s5;
      total[11] += acc[11] * s5;
      const float s6 = low_f16(scale[3]) * 0x1p+24f;
      total[12] += acc[12] * s6;
      total[13] += acc[13] * s6;
      const float s7 = high_f16(scale[3]) * 0x1p+20f;
      total[14] += acc[14] * s7;
      total[15] += acc[15] * s7;
    }
  }
  {  // barrier
    barrier();
  }
  {  // store sums[0, 0, 0] = total
    float* const to = sums + (((thread / 32) * 64) + (thread / 4 % 8) + ((thread % 4) * 264));
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 0) = {{as_bits(total[0])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 132) = {{as_bits(total[1])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 8) = {{as_bits(total[2])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 140) = {{as_bits(total[3])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 16) = {{as_bits(total[4])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 148) = {{as_bits(total[5])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 24) = {{as_bits(total[6])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 156) = {{as_bits(total[7])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 32) = {{as_bits(total[8])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 164) = {{as_bits(total[9])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 40) = {{as_bits(total[10])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 172) = {{as_bits(total[11])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 48) = {{as_bits(total[12])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 180) = {{as_bits(total[13])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 56) = {{as_bits(total[14])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 188) = {{as_bits(total[15])}}; }
  }
  {  // cluster_barrier
    cluster_barrier();
  }
  {  // sum = load sums[0, rank*64, 0] of rank 0
    const float* const from = sums + (((thread % 32) * 2) + ((thread / 32) * 132) + rank * 64);
    const u32 address = peer_address(shared_address(from), 0);
    { Words2 v = {}; if (thread / 32 + 0 < tokens) { load_peer(v, address + 0); } sum[0] = as_float(v.w[0]); sum[1] = as_float(v.w[1]); }
    { Words2 v = {}; if (thread / 32 + 2 < tokens) { load_peer(v, address + 1056); } sum[2] = as_float(v.w[0]); sum[3] = as_float(v.w[1]); }
    { Words2 v = {}; if (thread / 32 + 4 < tokens) { load_peer(v, address + 2112); } sum[4] = as_float(v.w[0]); sum[5] = as_float(v.w[1]); }
    { Words2 v = {}; if (thread / 32 + 6 < tokens) { load_peer(v, address + 3168); } sum[6] = as_float(v.w[0]); sum[7] = as_float(v.w[1]); }
  }
  #pragma unroll 16
  for (u32 peer = 0; peer < 1; ++peer) {
    {  // part = load sums[0, rank*64, 0] of rank peer + 1
      const float* const from = sums + (((thread % 32) * 2) + ((thread / 32) * 132) + rank * 64);
      const u32 address = peer_address(shared_address(from), peer + 1);
      { Words2 v = {}; if (thread / 32 + 0 < tokens) { load_peer(v, address + 0); } part[0] = as_float(v.w[0]); part[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 2 < tokens) { load_peer(v, address + 1056); } part[2] = as_float(v.w[0]); part[3] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 4 < tokens) { load_peer(v, address + 2112); } part[4] = as_float(v.w[0]); part[5] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 32 + 6 < tokens) { load_peer(v, address + 3168); } part[6] = as_float(v.w[0]); part[7] = as_float(v.w[1]); }
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
    }
  }
  {  // out = cast sum
    out[0] = pack_f16(sum[0], sum[1]);
    out[1] = pack_f16(sum[2], sum[3]);
    out[2] = pack_f16(sum[4], sum[5]);
    out[3] = pack_f16(sum[6], sum[7]);
  }
  {  // store y[0, tile*128 + rank*64, 0] = out
    u16* const to = y + (((thread % 32) * 2) + ((thread / 32) * 128) + tile * 128 + rank * 64);
    if (thread / 32 + 0 < tokens) { *(Words1*)(to + 0) = {{out[0]}}; }
    if (thread / 32 + 2 < tokens) { *(Words1*)(to + 256) = {{out[1]}}; }
    if (thread / 32 + 4 < tokens) { *(Words1*)(to + 512) = {{out[2]}}; }
    if (thread / 32 + 6 < tokens) { *(Words1*)(to + 768) = {{out[3]}}; }
  }
  {  // cluster_barrier
    cluster_barrier();
  }
}
