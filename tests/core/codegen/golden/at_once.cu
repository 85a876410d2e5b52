// SPDX-License-Identifier: Apache-2.0
// y[m<=8, n=64] bf16 = sum k=256: x[m, k] bf16 * s[n, k/64] bf16 * (u3[n, k] - 4)
// tokens 8, warps 1x2, blocks 1, one k-tile, cluster, multiply_add, dependent launch, 4 per multiprocessor
extern "C" __global__ void __launch_bounds__(64, 4) __cluster_dims__(2, 1, 1)
linear_u3(const u32* __restrict__ weight, const u16* __restrict__ scales, u16* __restrict__ x, u16* __restrict__ y, u32 tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;
  const u32 rank = cluster_rank();
  u16* const x_tile = (u16*)(shared + 0);
  float* const sums = (float*)(shared + 2176);
  u32 words[12];
  u32 scale_table[4];
  u32 scale[4];
  u32 a[16];
  u32 b[2];
  float acc[16];
  float sum[4];
  float part[4];
  u32 out[2];
  {  // words = load weight[tile, split*2, 0, 0, 0] now
    const u32* const from = weight + (((thread / 32) * 384) + ((thread % 32) * 4) + tile * 1536 + split * 768);
    { Words4 v; v = load_now((const Words4*)(from + 0)); words[0] = v.w[0]; words[1] = v.w[1]; words[2] = v.w[2]; words[3] = v.w[3]; }
    { Words4 v; v = load_now((const Words4*)(from + 128)); words[4] = v.w[0]; words[5] = v.w[1]; words[6] = v.w[2]; words[7] = v.w[3]; }
    { Words4 v; v = load_now((const Words4*)(from + 256)); words[8] = v.w[0]; words[9] = v.w[1]; words[10] = v.w[2]; words[11] = v.w[3]; }
    keep_order();
  }
  {  // scale_table = load scales[split*2, tile, 0, 0, 0] now
    const u16* const from = scales + (((thread / 32) * 64) + ((thread / 4 % 8) * 8) + split * 128 + tile * 64);
    { Words4 v; v = load_now((const Words4*)(from + 0)); scale_table[0] = v.w[0]; scale_table[1] = v.w[1]; scale_table[2] = v.w[2]; scale_table[3] = v.w[3]; }
    keep_order();
  }
  {  // scale = view scale_table
    scale[0] = scale_table[0];
    scale[1] = scale_table[1];
    scale[2] = scale_table[2];
    scale[3] = scale_table[3];
  }
  {  // dependent_wait
    dependent_wait();
  }
  {  // dependent_launch
    dependent_launch();
  }
  {  // copy_async x_tile = x[0, split*128]
    const u32 me = anew(thread);
    const u32 row = me / 16u, column = me % 16u * 8u;
    const u32 from_row = row + 0, from_column = column + split * 128;
    const u16* const source = x + ((u64)from_row * 256u + from_column);
    const u32 target = shared_address(x_tile + row * 136u + column);
    copy_async(target + 0u, source + 0, from_row + 0u < tokens ? 16u : 0u);
    copy_async(target + 1088u, source + 1024, from_row + 4u < tokens ? 16u : 0u);
  }
  {  // commit
    copy_commit();
  }
  {  // wait pending<=0
    copy_wait<0>();
  }
  {  // barrier
    barrier();
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
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + 0)));
  }
  {  // a = unpack u3 words block group + step/4 step step%4 - 4 times 2^-6
    a[0] = fma_bf16((words[0] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[1] = fma_bf16((words[0] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[2] = fma_bf16(((words[0] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[3] = fma_bf16(((words[0] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[4] = fma_bf16((words[3] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[5] = fma_bf16((words[3] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[6] = fma_bf16(((words[3] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[7] = fma_bf16(((words[3] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[8] = fma_bf16((words[6] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[9] = fma_bf16((words[6] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[10] = fma_bf16(((words[6] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[11] = fma_bf16(((words[6] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[12] = fma_bf16((words[9] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[13] = fma_bf16((words[9] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[14] = fma_bf16(((words[9] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[15] = fma_bf16(((words[9] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
  }
  {  // acc += mma a, b
    mma_bf16(acc + 0, a + 0, b + 0);
    mma_bf16(acc + 4, a + 4, b + 0);
    mma_bf16(acc + 8, a + 8, b + 0);
    mma_bf16(acc + 12, a + 12, b + 0);
  }
  // step = 1
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + 16)));
  }
  {  // a = unpack u3 words block group + step/4 step step%4 - 4 times 2^-6
    a[0] = fma_bf16(((words[0] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[1] = fma_bf16((words[1] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[2] = fma_bf16(((words[1] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[3] = fma_bf16(((words[1] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[4] = fma_bf16(((words[3] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[5] = fma_bf16((words[4] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[6] = fma_bf16(((words[4] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[7] = fma_bf16(((words[4] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[8] = fma_bf16(((words[6] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[9] = fma_bf16((words[7] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[10] = fma_bf16(((words[7] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[11] = fma_bf16(((words[7] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[12] = fma_bf16(((words[9] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[13] = fma_bf16((words[10] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[14] = fma_bf16(((words[10] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[15] = fma_bf16(((words[10] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
  }
  {  // acc += mma a, b
    mma_bf16(acc + 0, a + 0, b + 0);
    mma_bf16(acc + 4, a + 4, b + 0);
    mma_bf16(acc + 8, a + 8, b + 0);
    mma_bf16(acc + 12, a + 12, b + 0);
  }
  // step = 2
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + 32)));
  }
  {  // a = unpack u3 words block group + step/4 step step%4 - 4 times 2^-6
    a[0] = fma_bf16((words[1] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[1] = fma_bf16((words[2] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[2] = fma_bf16(((words[1] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[3] = fma_bf16(((words[2] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[4] = fma_bf16((words[4] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[5] = fma_bf16((words[5] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[6] = fma_bf16(((words[4] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[7] = fma_bf16(((words[5] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[8] = fma_bf16((words[7] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[9] = fma_bf16((words[8] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[10] = fma_bf16(((words[7] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[11] = fma_bf16(((words[8] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[12] = fma_bf16((words[10] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[13] = fma_bf16((words[11] & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[14] = fma_bf16(((words[10] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[15] = fma_bf16(((words[11] >> 6) & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
  }
  {  // acc += mma a, b
    mma_bf16(acc + 0, a + 0, b + 0);
    mma_bf16(acc + 4, a + 4, b + 0);
    mma_bf16(acc + 8, a + 8, b + 0);
    mma_bf16(acc + 12, a + 12, b + 0);
  }
  // step = 3
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + 48)));
  }
  {  // a = unpack u3 words block group + step/4 step step%4 - 4 times 2^-6
    a[0] = fma_bf16((words[2] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[1] = fma_bf16(((words[2] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[2] = fma_bf16(((words[2] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[3] = fma_bf16(((words[0] >> 15) & 0x00010001u) | ((words[1] >> 14) & 0x00020002u) | ((words[2] >> 13) & 0x00040004u), 0x7f007f00u, 0xbd80bd80u);
    a[4] = fma_bf16((words[5] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[5] = fma_bf16(((words[5] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[6] = fma_bf16(((words[5] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[7] = fma_bf16(((words[3] >> 15) & 0x00010001u) | ((words[4] >> 14) & 0x00020002u) | ((words[5] >> 13) & 0x00040004u), 0x7f007f00u, 0xbd80bd80u);
    a[8] = fma_bf16((words[8] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[9] = fma_bf16(((words[8] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[10] = fma_bf16(((words[8] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[11] = fma_bf16(((words[6] >> 15) & 0x00010001u) | ((words[7] >> 14) & 0x00020002u) | ((words[8] >> 13) & 0x00040004u), 0x7f007f00u, 0xbd80bd80u);
    a[12] = fma_bf16((words[11] & 0x00380038u), 0x7d807d80u, 0xbd80bd80u);
    a[13] = fma_bf16(((words[11] >> 6) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[14] = fma_bf16(((words[11] >> 12) & 0x00070007u), 0x7f007f00u, 0xbd80bd80u);
    a[15] = fma_bf16(((words[9] >> 15) & 0x00010001u) | ((words[10] >> 14) & 0x00020002u) | ((words[11] >> 13) & 0x00040004u), 0x7f007f00u, 0xbd80bd80u);
  }
  {  // acc += mma a, b
    mma_bf16(acc + 0, a + 0, b + 0);
    mma_bf16(acc + 4, a + 4, b + 0);
    mma_bf16(acc + 8, a + 8, b + 0);
    mma_bf16(acc + 12, a + 12, b + 0);
  }
  {  // acc = acc * scale[group] * 2^6
    const float s0 = low_bf16(scale[0]) * 0x1p+6f;
    acc[0] = acc[0] * s0;
    acc[1] = acc[1] * s0;
    const float s1 = high_bf16(scale[0]) * 0x1p+6f;
    acc[2] = acc[2] * s1;
    acc[3] = acc[3] * s1;
    const float s2 = low_bf16(scale[1]) * 0x1p+6f;
    acc[4] = acc[4] * s2;
    acc[5] = acc[5] * s2;
    const float s3 = high_bf16(scale[1]) * 0x1p+6f;
    acc[6] = acc[6] * s3;
    acc[7] = acc[7] * s3;
    const float s4 = low_bf16(scale[2]) * 0x1p+6f;
    acc[8] = acc[8] * s4;
    acc[9] = acc[9] * s4;
    const float s5 = high_bf16(scale[2]) * 0x1p+6f;
    acc[10] = acc[10] * s5;
    acc[11] = acc[11] * s5;
    const float s6 = low_bf16(scale[3]) * 0x1p+6f;
    acc[12] = acc[12] * s6;
    acc[13] = acc[13] * s6;
    const float s7 = high_bf16(scale[3]) * 0x1p+6f;
    acc[14] = acc[14] * s7;
    acc[15] = acc[15] * s7;
  }
  {  // store sums[0, 0, 0] = acc
    float* const to = sums + (((thread / 32) * 544) + thread / 4 % 8 + ((thread % 4) * 136));
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 0) = {{as_bits(acc[0])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 68) = {{as_bits(acc[1])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 8) = {{as_bits(acc[2])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 76) = {{as_bits(acc[3])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 16) = {{as_bits(acc[4])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 84) = {{as_bits(acc[5])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 24) = {{as_bits(acc[6])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 92) = {{as_bits(acc[7])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 32) = {{as_bits(acc[8])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 100) = {{as_bits(acc[9])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 40) = {{as_bits(acc[10])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 108) = {{as_bits(acc[11])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 48) = {{as_bits(acc[12])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 116) = {{as_bits(acc[13])}}; }
    if (((thread % 4) * 2) + 0 < tokens) { *(Words1*)(to + 56) = {{as_bits(acc[14])}}; }
    if (((thread % 4) * 2) + 1 < tokens) { *(Words1*)(to + 124) = {{as_bits(acc[15])}}; }
  }
  {  // cluster_barrier
    cluster_barrier();
  }
  {  // sum = load sums[0, rank*32, 0] of rank 0
    const float* const from = sums + (((thread % 16) * 2) + ((thread / 16) * 68) + rank * 32);
    const u32 address = peer_address(shared_address(from), 0);
    { Words2 v = {}; if (thread / 16 + 0 < tokens) { load_peer(v, address + 0); } sum[0] = as_float(v.w[0]); sum[1] = as_float(v.w[1]); }
    { Words2 v = {}; if (thread / 16 + 4 < tokens) { load_peer(v, address + 1088); } sum[2] = as_float(v.w[0]); sum[3] = as_float(v.w[1]); }
  }
  #pragma unroll 16
  for (u32 peer = 0; peer < 1; ++peer) {
    {  // part = load sums[0, rank*32, 0] of rank peer + 1
      const float* const from = sums + (((thread % 16) * 2) + ((thread / 16) * 68) + rank * 32);
      const u32 address = peer_address(shared_address(from), peer + 1);
      { Words2 v = {}; if (thread / 16 + 0 < tokens) { load_peer(v, address + 0); } part[0] = as_float(v.w[0]); part[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 16 + 4 < tokens) { load_peer(v, address + 1088); } part[2] = as_float(v.w[0]); part[3] = as_float(v.w[1]); }
    }
    {  // sum += part
      sum[0] += part[0];
      sum[1] += part[1];
      sum[2] += part[2];
      sum[3] += part[3];
    }
  }
  #pragma unroll 16
  for (u32 peer_ = 0; peer_ < 2; ++peer_) {
    {  // part = load sums[1, rank*32, 0] of rank peer_
      const float* const from = sums + (((thread % 16) * 2) + ((thread / 16) * 68) + rank * 32 + 544);
      const u32 address = peer_address(shared_address(from), peer_);
      { Words2 v = {}; if (thread / 16 + 0 < tokens) { load_peer(v, address + 0); } part[0] = as_float(v.w[0]); part[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 16 + 4 < tokens) { load_peer(v, address + 1088); } part[2] = as_float(v.w[0]); part[3] = as_float(v.w[1]); }
    }
    {  // sum += part
      sum[0] += part[0];
      sum[1] += part[1];
      sum[2] += part[2];
      sum[3] += part[3];
    }
  }
  {  // out = cast sum
    out[0] = pack_bf16(sum[0], sum[1]);
    out[1] = pack_bf16(sum[2], sum[3]);
  }
  {  // store y[0, tile*64 + rank*32, 0] = out
    u16* const to = y + (((thread % 16) * 2) + ((thread / 16) * 64) + tile * 64 + rank * 32);
    if (thread / 16 + 0 < tokens) { *(Words1*)(to + 0) = {{out[0]}}; }
    if (thread / 16 + 4 < tokens) { *(Words1*)(to + 256) = {{out[1]}}; }
  }
  {  // cluster_barrier
    cluster_barrier();
  }
}
