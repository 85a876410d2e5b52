// SPDX-License-Identifier: Apache-2.0
// y[m<=8, n=64] f16 = sum k=128: x[m, gather[k]] f16 * s[n, k/64] bf16 * ((u4[n, k] - 0) - z[n, k/64] u8) + bias[n] f16
// tokens 8, warps 1x2, blocks 1, one k-tile, none, multiply_add, 1 per multiprocessor
extern "C" __global__ void __launch_bounds__(64, 1)
linear_u4(const u32* __restrict__ weight, const u16* __restrict__ scales, const u8* __restrict__ zeros, const u16* __restrict__ bias, const u32* __restrict__ gather, u16* __restrict__ x, u16* __restrict__ y, u32 tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;
  u16* const x_tile = (u16*)(shared + 0);
  float* const sums = (float*)(shared + 2176);
  u32 words[16];
  u32 scale_table[4];
  u32 scale[4];
  u32 zero_point_table[2];
  u32 zero_point[2];
  u32 a[16];
  u32 b[2];
  float acc[16];
  u32 zero_operand[8];
  float sum[8];
  float part[8];
  u32 out[4];
  u32 bias_of_rows[4];
  {  // copy_elements x_tile = x[0, split*128] by gather
    #pragma unroll 4
    for (u32 word = thread; word < 512u; word += 64u) {
      const u32 row = word / 64u, column = word % 64u * 2u;
      const u32 from_row = row + 0, first = column + split * 128;
      u32 v[2] = {};
      for (u32 half = 0; half < 2u; ++half) {
        if (from_row < tokens) {
          const u32 from_column = gather[first + half];
          v[half] = load_element(x + (u64)from_row * 128u + from_column);
        }
      }
      *(u32*)(x_tile + row * 136u + column) = v[0] | v[1] << 16;
    }
  }
  {  // words = load weight[tile, split*2, 0, 0, 0] once
    const u32* const from = weight + (((thread / 32) * 512) + ((thread % 32) * 4) + tile * 1024 + split * 1024);
    { Words4 v; v = load_once((const Words4*)(from + 0)); words[0] = v.w[0]; words[1] = v.w[1]; words[2] = v.w[2]; words[3] = v.w[3]; }
    { Words4 v; v = load_once((const Words4*)(from + 128)); words[4] = v.w[0]; words[5] = v.w[1]; words[6] = v.w[2]; words[7] = v.w[3]; }
    { Words4 v; v = load_once((const Words4*)(from + 256)); words[8] = v.w[0]; words[9] = v.w[1]; words[10] = v.w[2]; words[11] = v.w[3]; }
    { Words4 v; v = load_once((const Words4*)(from + 384)); words[12] = v.w[0]; words[13] = v.w[1]; words[14] = v.w[2]; words[15] = v.w[3]; }
  }
  {  // scale_table = load scales[split*2, tile, 0, 0, 0]
    const u16* const from = scales + (((thread / 32) * 64) + ((thread / 4 % 8) * 8) + split * 128 + tile * 64);
    { Words4 v; v = load_constant((const Words4*)(from + 0)); scale_table[0] = v.w[0]; scale_table[1] = v.w[1]; scale_table[2] = v.w[2]; scale_table[3] = v.w[3]; }
  }
  {  // scale = view scale_table
    scale[0] = scale_table[0];
    scale[1] = scale_table[1];
    scale[2] = scale_table[2];
    scale[3] = scale_table[3];
  }
  {  // zero_point_table = load zeros[split*2, tile, 0, 0, 0]
    const u8* const from = zeros + (((thread / 32) * 64) + ((thread / 4 % 8) * 8) + split * 128 + tile * 64);
    { Words2 v; v = load_constant((const Words2*)(from + 0)); zero_point_table[0] = v.w[0]; zero_point_table[1] = v.w[1]; }
  }
  {  // zero_point = view zero_point_table
    zero_point[0] = zero_point_table[0];
    zero_point[1] = zero_point_table[1];
  }
  {  // barrier
    barrier();
  }
  // group = 0
  {  // zero_operand = -zero_point[group] * 2^-9
    zero_operand[0] = fma_f16(__byte_perm(zero_point[0], 0u, 0x00004040u), 0xf800f800u, 0x80008000u);
    zero_operand[1] = fma_f16(__byte_perm(zero_point[0], 0u, 0x00004141u), 0xf800f800u, 0x80008000u);
    zero_operand[2] = fma_f16(__byte_perm(zero_point[0], 0u, 0x00004242u), 0xf800f800u, 0x80008000u);
    zero_operand[3] = fma_f16(__byte_perm(zero_point[0], 0u, 0x00004343u), 0xf800f800u, 0x80008000u);
    zero_operand[4] = fma_f16(__byte_perm(zero_point[1], 0u, 0x00004040u), 0xf800f800u, 0x80008000u);
    zero_operand[5] = fma_f16(__byte_perm(zero_point[1], 0u, 0x00004141u), 0xf800f800u, 0x80008000u);
    zero_operand[6] = fma_f16(__byte_perm(zero_point[1], 0u, 0x00004242u), 0xf800f800u, 0x80008000u);
    zero_operand[7] = fma_f16(__byte_perm(zero_point[1], 0u, 0x00004343u), 0xf800f800u, 0x80008000u);
  }
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
  {  // a = unpack u4 words block group + step/4 step step%4 - 0 times 2^-9 + zero_operand
    a[0] = fma_f16((words[0] & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[1] = fma_f16((words[0] & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[2] = fma_f16(((words[0] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[3] = fma_f16(((words[0] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[4] = fma_f16((words[4] & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[5] = fma_f16((words[4] & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[6] = fma_f16(((words[4] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[7] = fma_f16(((words[4] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[8] = fma_f16((words[8] & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[9] = fma_f16((words[8] & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[10] = fma_f16(((words[8] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[11] = fma_f16(((words[8] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[12] = fma_f16((words[12] & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[13] = fma_f16((words[12] & 0x00f000f0u), 0x68006800u, zero_operand[7]);
    a[14] = fma_f16(((words[12] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[15] = fma_f16(((words[12] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[7]);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  // step = 1
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + 16)));
  }
  {  // a = unpack u4 words block group + step/4 step step%4 - 0 times 2^-9 + zero_operand
    a[0] = fma_f16((words[1] & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[1] = fma_f16((words[1] & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[2] = fma_f16(((words[1] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[3] = fma_f16(((words[1] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[4] = fma_f16((words[5] & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[5] = fma_f16((words[5] & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[6] = fma_f16(((words[5] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[7] = fma_f16(((words[5] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[8] = fma_f16((words[9] & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[9] = fma_f16((words[9] & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[10] = fma_f16(((words[9] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[11] = fma_f16(((words[9] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[12] = fma_f16((words[13] & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[13] = fma_f16((words[13] & 0x00f000f0u), 0x68006800u, zero_operand[7]);
    a[14] = fma_f16(((words[13] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[15] = fma_f16(((words[13] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[7]);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  // step = 2
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + 32)));
  }
  {  // a = unpack u4 words block group + step/4 step step%4 - 0 times 2^-9 + zero_operand
    a[0] = fma_f16((words[2] & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[1] = fma_f16((words[2] & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[2] = fma_f16(((words[2] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[3] = fma_f16(((words[2] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[4] = fma_f16((words[6] & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[5] = fma_f16((words[6] & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[6] = fma_f16(((words[6] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[7] = fma_f16(((words[6] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[8] = fma_f16((words[10] & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[9] = fma_f16((words[10] & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[10] = fma_f16(((words[10] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[11] = fma_f16(((words[10] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[12] = fma_f16((words[14] & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[13] = fma_f16((words[14] & 0x00f000f0u), 0x68006800u, zero_operand[7]);
    a[14] = fma_f16(((words[14] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[15] = fma_f16(((words[14] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[7]);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  // step = 3
  {  // b = load_matrix x_tile[0, 0, group*64 + step*16]
    const u32 lane = thread % 32;
    load_matrix<2>(b + 0, shared_address(x_tile + ((thread / 32 % 2) * 64 + (lane / 16 % 1 * 8 + lane % 8 + 0) * 136 + lane / 8 % 2 * 8 + 48)));
  }
  {  // a = unpack u4 words block group + step/4 step step%4 - 0 times 2^-9 + zero_operand
    a[0] = fma_f16((words[3] & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[1] = fma_f16((words[3] & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[2] = fma_f16(((words[3] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[0]);
    a[3] = fma_f16(((words[3] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[1]);
    a[4] = fma_f16((words[7] & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[5] = fma_f16((words[7] & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[6] = fma_f16(((words[7] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[2]);
    a[7] = fma_f16(((words[7] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[3]);
    a[8] = fma_f16((words[11] & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[9] = fma_f16((words[11] & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[10] = fma_f16(((words[11] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[4]);
    a[11] = fma_f16(((words[11] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[5]);
    a[12] = fma_f16((words[15] & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[13] = fma_f16((words[15] & 0x00f000f0u), 0x68006800u, zero_operand[7]);
    a[14] = fma_f16(((words[15] >> 8) & 0x000f000fu), 0x78007800u, zero_operand[6]);
    a[15] = fma_f16(((words[15] >> 8) & 0x00f000f0u), 0x68006800u, zero_operand[7]);
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  {  // acc = acc * scale[group] * 2^9
    const float s0 = low_bf16(scale[0]) * 0x1p+9f;
    acc[0] = acc[0] * s0;
    acc[1] = acc[1] * s0;
    const float s1 = high_bf16(scale[0]) * 0x1p+9f;
    acc[2] = acc[2] * s1;
    acc[3] = acc[3] * s1;
    const float s2 = low_bf16(scale[1]) * 0x1p+9f;
    acc[4] = acc[4] * s2;
    acc[5] = acc[5] * s2;
    const float s3 = high_bf16(scale[1]) * 0x1p+9f;
    acc[6] = acc[6] * s3;
    acc[7] = acc[7] * s3;
    const float s4 = low_bf16(scale[2]) * 0x1p+9f;
    acc[8] = acc[8] * s4;
    acc[9] = acc[9] * s4;
    const float s5 = high_bf16(scale[2]) * 0x1p+9f;
    acc[10] = acc[10] * s5;
    acc[11] = acc[11] * s5;
    const float s6 = low_bf16(scale[3]) * 0x1p+9f;
    acc[12] = acc[12] * s6;
    acc[13] = acc[13] * s6;
    const float s7 = high_bf16(scale[3]) * 0x1p+9f;
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
    }
    #pragma unroll 16
    for (u32 warp = 0; warp < 1; ++warp) {
      {  // part = load sums[warp + 1, 0, 0]
        const float* const from = sums + (((thread % 32) * 2) + ((thread / 32) * 68) + warp * 544 + 544);
        { Words2 v = {}; if (thread / 32 + 0 < tokens) { v = *(const Words2*)(from + 0); } part[0] = as_float(v.w[0]); part[1] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 2 < tokens) { v = *(const Words2*)(from + 136); } part[2] = as_float(v.w[0]); part[3] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 4 < tokens) { v = *(const Words2*)(from + 272); } part[4] = as_float(v.w[0]); part[5] = as_float(v.w[1]); }
        { Words2 v = {}; if (thread / 32 + 6 < tokens) { v = *(const Words2*)(from + 408); } part[6] = as_float(v.w[0]); part[7] = as_float(v.w[1]); }
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
    {  // bias_of_rows = load bias[0, tile*64, 0]
      const u16* const from = bias + (((thread % 32) * 2) + tile * 64);
      { Words1 v = {}; if (bias != nullptr) { v = load_constant((const Words1*)(from + 0)); } bias_of_rows[0] = v.w[0]; }
      bias_of_rows[1] = bias_of_rows[0];
      bias_of_rows[2] = bias_of_rows[0];
      bias_of_rows[3] = bias_of_rows[0];
    }
    {  // sum += bias_of_rows
      sum[0] += low_f16(bias_of_rows[0]);
      sum[1] += high_f16(bias_of_rows[0]);
      sum[2] += low_f16(bias_of_rows[1]);
      sum[3] += high_f16(bias_of_rows[1]);
      sum[4] += low_f16(bias_of_rows[2]);
      sum[5] += high_f16(bias_of_rows[2]);
      sum[6] += low_f16(bias_of_rows[3]);
      sum[7] += high_f16(bias_of_rows[3]);
    }
    {  // out = cast sum
      out[0] = pack_f16(sum[0], sum[1]);
      out[1] = pack_f16(sum[2], sum[3]);
      out[2] = pack_f16(sum[4], sum[5]);
      out[3] = pack_f16(sum[6], sum[7]);
    }
    {  // store y[0, tile*64, 0] = out
      u16* const to = y + (((thread % 32) * 2) + ((thread / 32) * 64) + tile * 64);
      if (thread / 32 + 0 < tokens) { *(Words1*)(to + 0) = {{out[0]}}; }
      if (thread / 32 + 2 < tokens) { *(Words1*)(to + 128) = {{out[1]}}; }
      if (thread / 32 + 4 < tokens) { *(Words1*)(to + 256) = {{out[2]}}; }
      if (thread / 32 + 6 < tokens) { *(Words1*)(to + 384) = {{out[3]}}; }
    }
  }
}
