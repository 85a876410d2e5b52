// SPDX-License-Identifier: Apache-2.0
// y[m<=8, n=256] f16 = sum k=512: x[m, k] f16 * s[n, k/128] f16 * (u4[n, k] - 8)
// tokens 8, warps 2x2, blocks 1, k-tiles 2, ordered, multiply_add, 2 per multiprocessor
extern "C" __global__ void __launch_bounds__(128, 2)
linear_u4(const u32* __restrict__ weight, const u16* __restrict__ scales, u16* __restrict__ x, u16* __restrict__ y, float* __restrict__ workspace, u32* __restrict__ counters, u32 tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;
  u16* const x_tile = (u16*)(shared + 0);
  float* const sums = (float*)(shared + 4224);
  u32 arrived;
  u32 words[16];
  u32 scale_table[4];
  u32 scale[4];
  u32 a[16];
  u32 b[2];
  float acc[16];
  float total[16];
  u32 next_words[16];
  u32 next_scale[4];
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
    copy_async(target + 2112u, source + 2048, from_row + 4u < tokens ? 16u : 0u);
  }
  {  // commit
    copy_commit();
  }
  {  // words = load weight[tile*2, split*4, 0, 0, 0] once
    const u32* const from = weight + (((thread / 64) * 4096) + ((thread / 32 % 2) * 512) + ((thread % 32) * 4) + tile * 8192 + split * 2048);
    { Words4 v; v = load_once((const Words4*)(from + 0)); words[0] = v.w[0]; words[1] = v.w[1]; words[2] = v.w[2]; words[3] = v.w[3]; }
    { Words4 v; v = load_once((const Words4*)(from + 128)); words[4] = v.w[0]; words[5] = v.w[1]; words[6] = v.w[2]; words[7] = v.w[3]; }
    { Words4 v; v = load_once((const Words4*)(from + 256)); words[8] = v.w[0]; words[9] = v.w[1]; words[10] = v.w[2]; words[11] = v.w[3]; }
    { Words4 v; v = load_once((const Words4*)(from + 384)); words[12] = v.w[0]; words[13] = v.w[1]; words[14] = v.w[2]; words[15] = v.w[3]; }
  }
  {  // scale_table = load scales[split*2, tile*2, 0, 0, 0]
    const u16* const from = scales + (((thread / 64) * 64) + ((thread / 4 % 8) * 8) + split * 512 + tile * 128);
    { Words4 v; v = load_constant((const Words4*)(from + 0)); scale_table[0] = v.w[0]; scale_table[1] = v.w[1]; scale_table[2] = v.w[2]; scale_table[3] = v.w[3]; }
  }
  {  // scale = view scale_table
    scale[0] = scale_table[0];
    scale[1] = scale_table[1];
    scale[2] = scale_table[2];
    scale[3] = scale_table[3];
  }
  {  // wait pending<=0
    copy_wait<0>();
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
  #pragma unroll 2
  for (u32 k_tile = 0; k_tile < 1; ++k_tile) {
    {  // next_words = load weight[tile*2, split*4 + k_tile*2 + 2, 0, 0, 0] once
      const u32* const from = weight + (((thread / 64) * 4096) + ((thread / 32 % 2) * 512) + ((thread % 32) * 4) + tile * 8192 + split * 2048 + k_tile * 1024 + 1024);
      { Words4 v; v = load_once((const Words4*)(from + 0)); next_words[0] = v.w[0]; next_words[1] = v.w[1]; next_words[2] = v.w[2]; next_words[3] = v.w[3]; }
      { Words4 v; v = load_once((const Words4*)(from + 128)); next_words[4] = v.w[0]; next_words[5] = v.w[1]; next_words[6] = v.w[2]; next_words[7] = v.w[3]; }
      { Words4 v; v = load_once((const Words4*)(from + 256)); next_words[8] = v.w[0]; next_words[9] = v.w[1]; next_words[10] = v.w[2]; next_words[11] = v.w[3]; }
      { Words4 v; v = load_once((const Words4*)(from + 384)); next_words[12] = v.w[0]; next_words[13] = v.w[1]; next_words[14] = v.w[2]; next_words[15] = v.w[3]; }
    }
    {  // next_scale = load scales[split*2 + k_tile + 1, tile*2, 0, 0, 0]
      const u16* const from = scales + (((thread / 64) * 64) + ((thread / 4 % 8) * 8) + split * 512 + k_tile * 256 + tile * 128 + 256);
      { Words4 v; v = load_constant((const Words4*)(from + 0)); next_scale[0] = v.w[0]; next_scale[1] = v.w[1]; next_scale[2] = v.w[2]; next_scale[3] = v.w[3]; }
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
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*128]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 128)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
      a[0] = fma_f16((words[0] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[0] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[0] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[0] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[4] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[4] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[4] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[4] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[8] = fma_f16((words[8] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[9] = fma_f16((words[8] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[10] = fma_f16(((words[8] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[11] = fma_f16(((words[8] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[12] = fma_f16((words[12] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[13] = fma_f16((words[12] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[14] = fma_f16(((words[12] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[15] = fma_f16(((words[12] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    // step = 1
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*128]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 128 + 16)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
      a[0] = fma_f16((words[1] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[1] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[1] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[1] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[5] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[5] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[5] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[5] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[8] = fma_f16((words[9] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[9] = fma_f16((words[9] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[10] = fma_f16(((words[9] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[11] = fma_f16(((words[9] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[12] = fma_f16((words[13] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[13] = fma_f16((words[13] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[14] = fma_f16(((words[13] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[15] = fma_f16(((words[13] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    // step = 2
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*128]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 128 + 32)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
      a[0] = fma_f16((words[2] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[2] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[2] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[2] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[6] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[6] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[6] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[6] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[8] = fma_f16((words[10] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[9] = fma_f16((words[10] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[10] = fma_f16(((words[10] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[11] = fma_f16(((words[10] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[12] = fma_f16((words[14] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[13] = fma_f16((words[14] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[14] = fma_f16(((words[14] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[15] = fma_f16(((words[14] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    // step = 3
    {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + k_tile*128]
      const u32 lane = thread % 32;
      load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + k_tile * 128 + 48)));
    }
    {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
      a[0] = fma_f16((words[3] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[1] = fma_f16((words[3] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[2] = fma_f16(((words[3] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[3] = fma_f16(((words[3] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[4] = fma_f16((words[7] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[5] = fma_f16((words[7] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[6] = fma_f16(((words[7] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[7] = fma_f16(((words[7] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[8] = fma_f16((words[11] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[9] = fma_f16((words[11] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[10] = fma_f16(((words[11] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[11] = fma_f16(((words[11] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[12] = fma_f16((words[15] & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[13] = fma_f16((words[15] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
      a[14] = fma_f16(((words[15] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
      a[15] = fma_f16(((words[15] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    }
    {  // acc += mma a, b
      mma_f16(acc + 0, a + 0, b + 0);
      mma_f16(acc + 4, a + 4, b + 0);
      mma_f16(acc + 8, a + 8, b + 0);
      mma_f16(acc + 12, a + 12, b + 0);
    }
    {  // total += acc * scale[group] * 2^9
      const float s0 = low_f16(scale[0]) * 0x1p+9f;
      total[0] += acc[0] * s0;
      total[1] += acc[1] * s0;
      const float s1 = high_f16(scale[0]) * 0x1p+9f;
      total[2] += acc[2] * s1;
      total[3] += acc[3] * s1;
      const float s2 = low_f16(scale[1]) * 0x1p+9f;
      total[4] += acc[4] * s2;
      total[5] += acc[5] * s2;
      const float s3 = high_f16(scale[1]) * 0x1p+9f;
      total[6] += acc[6] * s3;
      total[7] += acc[7] * s3;
      const float s4 = low_f16(scale[2]) * 0x1p+9f;
      total[8] += acc[8] * s4;
      total[9] += acc[9] * s4;
      const float s5 = high_f16(scale[2]) * 0x1p+9f;
      total[10] += acc[10] * s5;
      total[11] += acc[11] * s5;
      const float s6 = low_f16(scale[3]) * 0x1p+9f;
      total[12] += acc[12] * s6;
      total[13] += acc[13] * s6;
      const float s7 = high_f16(scale[3]) * 0x1p+9f;
      total[14] += acc[14] * s7;
      total[15] += acc[15] * s7;
    }
    {  // words = view next_words
      words[0] = next_words[0];
      words[1] = next_words[1];
      words[2] = next_words[2];
      words[3] = next_words[3];
      words[4] = next_words[4];
      words[5] = next_words[5];
      words[6] = next_words[6];
      words[7] = next_words[7];
      words[8] = next_words[8];
      words[9] = next_words[9];
      words[10] = next_words[10];
      words[11] = next_words[11];
      words[12] = next_words[12];
      words[13] = next_words[13];
      words[14] = next_words[14];
      words[15] = next_words[15];
    }
    {  // scale_table = view next_scale
      scale_table[0] = next_scale[0];
      scale_table[1] = next_scale[1];
      scale_table[2] = next_scale[2];
      scale_table[3] = next_scale[3];
    }
    {  // scale = view scale_table
      scale[0] = scale_table[0];
      scale[1] = scale_table[1];
      scale[2] = scale_table[2];
      scale[3] = scale_table[3];
    }
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
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + 128]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + 128)));
  }
  {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
    a[0] = fma_f16((words[0] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[1] = fma_f16((words[0] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[2] = fma_f16(((words[0] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[3] = fma_f16(((words[0] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[4] = fma_f16((words[4] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[5] = fma_f16((words[4] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[6] = fma_f16(((words[4] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[7] = fma_f16(((words[4] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[8] = fma_f16((words[8] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[9] = fma_f16((words[8] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[10] = fma_f16(((words[8] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[11] = fma_f16(((words[8] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[12] = fma_f16((words[12] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[13] = fma_f16((words[12] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[14] = fma_f16(((words[12] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[15] = fma_f16(((words[12] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  // step = 1
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + 128]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + 144)));
  }
  {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
    a[0] = fma_f16((words[1] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[1] = fma_f16((words[1] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[2] = fma_f16(((words[1] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[3] = fma_f16(((words[1] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[4] = fma_f16((words[5] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[5] = fma_f16((words[5] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[6] = fma_f16(((words[5] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[7] = fma_f16(((words[5] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[8] = fma_f16((words[9] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[9] = fma_f16((words[9] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[10] = fma_f16(((words[9] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[11] = fma_f16(((words[9] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[12] = fma_f16((words[13] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[13] = fma_f16((words[13] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[14] = fma_f16(((words[13] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[15] = fma_f16(((words[13] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  // step = 2
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + 128]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + 160)));
  }
  {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
    a[0] = fma_f16((words[2] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[1] = fma_f16((words[2] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[2] = fma_f16(((words[2] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[3] = fma_f16(((words[2] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[4] = fma_f16((words[6] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[5] = fma_f16((words[6] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[6] = fma_f16(((words[6] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[7] = fma_f16(((words[6] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[8] = fma_f16((words[10] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[9] = fma_f16((words[10] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[10] = fma_f16(((words[10] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[11] = fma_f16(((words[10] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[12] = fma_f16((words[14] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[13] = fma_f16((words[14] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[14] = fma_f16(((words[14] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[15] = fma_f16(((words[14] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  // step = 3
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16 + 128]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 264 + lane / 8 % 2 * 8 + 176)));
  }
  {  // a = unpack u4 words block group + step/4 step step%4 - 8 times 2^-9
    a[0] = fma_f16((words[3] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[1] = fma_f16((words[3] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[2] = fma_f16(((words[3] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[3] = fma_f16(((words[3] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[4] = fma_f16((words[7] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[5] = fma_f16((words[7] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[6] = fma_f16(((words[7] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[7] = fma_f16(((words[7] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[8] = fma_f16((words[11] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[9] = fma_f16((words[11] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[10] = fma_f16(((words[11] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[11] = fma_f16(((words[11] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[12] = fma_f16((words[15] & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[13] = fma_f16((words[15] & 0x00f000f0u), 0x68006800u, 0xa400a400u);
    a[14] = fma_f16(((words[15] >> 8) & 0x000f000fu), 0x78007800u, 0xa400a400u);
    a[15] = fma_f16(((words[15] >> 8) & 0x00f000f0u), 0x68006800u, 0xa400a400u);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  {  // total += acc * scale[group] * 2^9
    const float s0 = low_f16(scale[0]) * 0x1p+9f;
    total[0] += acc[0] * s0;
    total[1] += acc[1] * s0;
    const float s1 = high_f16(scale[0]) * 0x1p+9f;
    total[2] += acc[2] * s1;
    total[3] += acc[3] * s1;
    const float s2 = low_f16(scale[1]) * 0x1p+9f;
    total[4] += acc[4] * s2;
    total[5] += acc[5] * s2;
    const float s3 = high_f16(scale[1]) * 0x1p+9f;
    total[6] += acc[6] * s3;
    total[7] += acc[7] * s3;
    const float s4 = low_f16(scale[2]) * 0x1p+9f;
    total[8] += acc[8] * s4;
    total[9] += acc[9] * s4;
    const float s5 = high_f16(scale[2]) * 0x1p+9f;
    total[10] += acc[10] * s5;
    total[11] += acc[11] * s5;
    const float s6 = low_f16(scale[3]) * 0x1p+9f;
    total[12] += acc[12] * s6;
    total[13] += acc[13] * s6;
    const float s7 = high_f16(scale[3]) * 0x1p+9f;
    total[14] += acc[14] * s7;
    total[15] += acc[15] * s7;
  }
  {  // store sums[0, 0, 0] = total
    float* const to = sums + (((thread / 32 % 2) * 1056) + ((thread / 64) * 64) + (thread / 4 % 8) + ((thread % 4) * 264));
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
  {  // barrier
    barrier();
  }
  if (thread / 64 + 0 < tokens) {  // within sums[0, 0, 0] by sum
    {  // sum = load sums[0, 0, 0]
      const float* const from = sums + (((thread % 64) * 2) + ((thread / 64) * 132));
      { Words2 v = {}; if (thread / 64 + 0 < tokens) { v = *(const Words2*)(from + 0); } sum[0] = as_float(v.w[0]); sum[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 64 + 2 < tokens) { v = *(const Words2*)(from + 264); } sum[2] = as_float(v.w[0]); sum[3] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 64 + 4 < tokens) { v = *(const Words2*)(from + 528); } sum[4] = as_float(v.w[0]); sum[5] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 64 + 6 < tokens) { v = *(const Words2*)(from + 792); } sum[6] = as_float(v.w[0]); sum[7] = as_float(v.w[1]); }
    }
    #pragma unroll 16
    for (u32 warp = 0; warp < 1; ++warp) {
      {  // part = load sums[warp + 1, 0, 0]
        const float* const from = sums + (((thread % 64) * 2) + ((thread / 64) * 132) + warp * 1056 + 1056);
        { Words2 v = {}; if (thread / 64 + 0 < tokens) { v = *(const Words2*)(from + 0); } part[0] = as_float(v.w[0]); part[1] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 64 + 2 < tokens) { v = *(const Words2*)(from + 264); } part[2] = as_float(v.w[0]); part[3] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 64 + 4 < tokens) { v = *(const Words2*)(from + 528); } part[4] = as_float(v.w[0]); part[5] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 64 + 6 < tokens) { v = *(const Words2*)(from + 792); } part[6] = as_float(v.w[0]); part[7] = as_float(v.w[1]); }
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
    {  // store workspace[tile*2 + split, 0, 0] = sum
      float* const to = workspace + (((thread % 64) * 2) + ((thread / 64) * 128) + tile * 2048 + split * 1024);
      if (thread / 64 + 0 < tokens) { *(Words2*)(to + 0) = {{as_bits(sum[0]), as_bits(sum[1])}}; }
      if (thread / 64 + 2 < tokens) { *(Words2*)(to + 256) = {{as_bits(sum[2]), as_bits(sum[3])}}; }
      if (thread / 64 + 4 < tokens) { *(Words2*)(to + 512) = {{as_bits(sum[4]), as_bits(sum[5])}}; }
      if (thread / 64 + 6 < tokens) { *(Words2*)(to + 768) = {{as_bits(sum[6]), as_bits(sum[7])}}; }
    }
  }
  {  // arrived = ticket counters[tile] of 2
    __shared__ u32 before;
    arrived = ticket(counters + tile, 2u, &before);
  }
  if (arrived == 1) {
    {  // sum = load workspace[tile*2, 0, 0]
      const float* const from = workspace + (((thread % 64) * 2) + ((thread / 64) * 128) + tile * 2048);
      { Words2 v = {}; if (thread / 64 + 0 < tokens) { v = load_fresh((const Words2*)(from + 0)); } sum[0] = as_float(v.w[0]); sum[1] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 64 + 2 < tokens) { v = load_fresh((const Words2*)(from + 256)); } sum[2] = as_float(v.w[0]); sum[3] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 64 + 4 < tokens) { v = load_fresh((const Words2*)(from + 512)); } sum[4] = as_float(v.w[0]); sum[5] = as_float(v.w[1]); }
      { Words2 v = {}; if (thread / 64 + 6 < tokens) { v = load_fresh((const Words2*)(from + 768)); } sum[6] = as_float(v.w[0]); sum[7] = as_float(v.w[1]); }
    }
    #pragma unroll 16
    for (u32 earlier = 0; earlier < 1; ++earlier) {
      {  // part = load workspace[tile*2 + earlier + 1, 0, 0]
        const float* const from = workspace + (((thread % 64) * 2) + ((thread / 64) * 128) + tile * 2048 + earlier * 1024 + 1024);
        { Words2 v = {}; if (thread / 64 + 0 < tokens) { v = load_fresh((const Words2*)(from + 0)); } part[0] = as_float(v.w[0]); part[1] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 64 + 2 < tokens) { v = load_fresh((const Words2*)(from + 256)); } part[2] = as_float(v.w[0]); part[3] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 64 + 4 < tokens) { v = load_fresh((const Words2*)(from + 512)); } part[4] = as_float(v.w[0]); part[5] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 64 + 6 < tokens) { v = load_fresh((const Words2*)(from + 768)); } part[6] = as_float(v.w[0]); part[7] = as_float(v.w[1]); }
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
    {  // store y[0, tile*128, 0] = out
      u16* const to = y + (((thread % 64) * 2) + ((thread / 64) * 256) + tile * 128);
      if (thread / 64 + 0 < tokens) { *(Words1*)(to + 0) = {{out[0]}}; }
      if (thread / 64 + 2 < tokens) { *(Words1*)(to + 512) = {{out[1]}}; }
      if (thread / 64 + 4 < tokens) { *(Words1*)(to + 1024) = {{out[2]}}; }
      if (thread / 64 + 6 < tokens) { *(Words1*)(to + 1536) = {{out[3]}}; }
    }
  }
}
