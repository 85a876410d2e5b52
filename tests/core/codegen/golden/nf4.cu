// SPDX-License-Identifier: Apache-2.0
// y[m<=8, n=64] f16 = sum k=128: x[m, k] f16 * s[n, k/64] f16 * nf4[n, k]
// tokens 8, warps 1x2, blocks 1, one k-tile, none, multiply_add, 1 per multiprocessor
__device__ const u16 code_table_values[] = {0x0000f400u, 0x0000f192u, 0x0000f033u, 0x0000ee52u, 0x0000ec8du, 0x0000e9eau, 0x0000e5d4u, 0x00000000u, 0x00006518u, 0x00006926u, 0x00006be0u, 0x00006d68u, 0x00006f0du, 0x00007080u, 0x000071c9u, 0x00007400u};
extern "C" __global__ void __launch_bounds__(64, 1)
linear_nf4(const u32* __restrict__ weight, const u16* __restrict__ scales, u16* __restrict__ x, u16* __restrict__ y, u32 tokens) {
  extern __shared__ __align__(128) unsigned char shared[];
  const u32 thread = threadIdx.x, split = blockIdx.x, tile = blockIdx.y;
  u16* const x_tile = (u16*)(shared + 0);
  u32* const code_table = (u32*)(shared + 2176);
  float* const sums = (float*)(shared + 34944);
  u32 words[16];
  u32 scale_table[4];
  u32 scale[4];
  u32 a[16];
  u32 b[2];
  float acc[16];
  float sum[8];
  float part[8];
  u32 out[4];
  {  // copy_async x_tile = x[0, split*128]
    const u32 me = anew(thread);
    const u32 row = me / 16u, column = me % 16u * 8u;
    const u32 from_row = row + 0, from_column = column + split * 128;
    const u16* const source = x + ((u64)from_row * 128u + from_column);
    const u32 target = shared_address(x_tile + row * 136u + column);
    copy_async(target + 0u, source + 0, from_row + 0u < tokens ? 16u : 0u);
    copy_async(target + 1088u, source + 512, from_row + 4u < tokens ? 16u : 0u);
  }
  {  // commit
    copy_commit();
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
  {  // fill_table code_table of u4
    for (u32 piece = thread; piece < 2048u; piece += 64u) {
      const u32 entry = piece / 8u;
      const u32 v = code_table_values[entry & 15u] | (u32)code_table_values[entry >> 4] << 16;
      ((Words4*)code_table)[piece] = {{v, v, v, v}};
    }
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
  {  // a = lookup u4 words block group + step/4 step step%4 in code_table
    const u32 copy = shared_address(code_table) + thread % 32 * 4;
    { const u32 c = ((words[0] << 4) & 0x00f000f0u);
      a[0] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[0] & 0x00f000f0u);
      a[1] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[0] << 4) & 0xf000f000u);
      a[2] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[0] & 0xf000f000u);
      a[3] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[4] << 4) & 0x00f000f0u);
      a[4] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[4] & 0x00f000f0u);
      a[5] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[4] << 4) & 0xf000f000u);
      a[6] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[4] & 0xf000f000u);
      a[7] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[8] << 4) & 0x00f000f0u);
      a[8] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[8] & 0x00f000f0u);
      a[9] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[8] << 4) & 0xf000f000u);
      a[10] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[8] & 0xf000f000u);
      a[11] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[12] << 4) & 0x00f000f0u);
      a[12] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[12] & 0x00f000f0u);
      a[13] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[12] << 4) & 0xf000f000u);
      a[14] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[12] & 0xf000f000u);
      a[15] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
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
  {  // a = lookup u4 words block group + step/4 step step%4 in code_table
    const u32 copy = shared_address(code_table) + thread % 32 * 4;
    { const u32 c = ((words[1] << 4) & 0x00f000f0u);
      a[0] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[1] & 0x00f000f0u);
      a[1] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[1] << 4) & 0xf000f000u);
      a[2] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[1] & 0xf000f000u);
      a[3] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[5] << 4) & 0x00f000f0u);
      a[4] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[5] & 0x00f000f0u);
      a[5] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[5] << 4) & 0xf000f000u);
      a[6] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[5] & 0xf000f000u);
      a[7] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[9] << 4) & 0x00f000f0u);
      a[8] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[9] & 0x00f000f0u);
      a[9] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[9] << 4) & 0xf000f000u);
      a[10] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[9] & 0xf000f000u);
      a[11] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[13] << 4) & 0x00f000f0u);
      a[12] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[13] & 0x00f000f0u);
      a[13] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[13] << 4) & 0xf000f000u);
      a[14] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[13] & 0xf000f000u);
      a[15] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
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
  {  // a = lookup u4 words block group + step/4 step step%4 in code_table
    const u32 copy = shared_address(code_table) + thread % 32 * 4;
    { const u32 c = ((words[2] << 4) & 0x00f000f0u);
      a[0] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[2] & 0x00f000f0u);
      a[1] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[2] << 4) & 0xf000f000u);
      a[2] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[2] & 0xf000f000u);
      a[3] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[6] << 4) & 0x00f000f0u);
      a[4] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[6] & 0x00f000f0u);
      a[5] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[6] << 4) & 0xf000f000u);
      a[6] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[6] & 0xf000f000u);
      a[7] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[10] << 4) & 0x00f000f0u);
      a[8] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[10] & 0x00f000f0u);
      a[9] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[10] << 4) & 0xf000f000u);
      a[10] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[10] & 0xf000f000u);
      a[11] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[14] << 4) & 0x00f000f0u);
      a[12] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[14] & 0x00f000f0u);
      a[13] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[14] << 4) & 0xf000f000u);
      a[14] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[14] & 0xf000f000u);
      a[15] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
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
  {  // a = lookup u4 words block group + step/4 step step%4 in code_table
    const u32 copy = shared_address(code_table) + thread % 32 * 4;
    { const u32 c = ((words[3] << 4) & 0x00f000f0u);
      a[0] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[3] & 0x00f000f0u);
      a[1] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[3] << 4) & 0xf000f000u);
      a[2] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[3] & 0xf000f000u);
      a[3] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[7] << 4) & 0x00f000f0u);
      a[4] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[7] & 0x00f000f0u);
      a[5] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[7] << 4) & 0xf000f000u);
      a[6] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[7] & 0xf000f000u);
      a[7] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[11] << 4) & 0x00f000f0u);
      a[8] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[11] & 0x00f000f0u);
      a[9] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[11] << 4) & 0xf000f000u);
      a[10] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[11] & 0xf000f000u);
      a[11] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = ((words[15] << 4) & 0x00f000f0u);
      a[12] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = (words[15] & 0x00f000f0u);
      a[13] = table_entry(dot_bytes(c, 0x00800008u, copy)); }
    { const u32 c = ((words[15] << 4) & 0xf000f000u);
      a[14] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
    { const u32 c = (words[15] & 0xf000f000u);
      a[15] = table_entry(dot_bytes(c, 0x80000800u, copy)); }
  }
  {  // acc += mma a, b
    mma_f16(acc + 0, a + 0, b + 0);
    mma_f16(acc + 4, a + 4, b + 0);
    mma_f16(acc + 8, a + 8, b + 0);
    mma_f16(acc + 12, a + 12, b + 0);
  }
  {  // acc = acc * scale[group] * 2^-14
    const float s0 = low_f16(scale[0]) * 0x1p-14f;
    acc[0] = acc[0] * s0;
    acc[1] = acc[1] * s0;
    const float s1 = high_f16(scale[0]) * 0x1p-14f;
    acc[2] = acc[2] * s1;
    acc[3] = acc[3] * s1;
    const float s2 = low_f16(scale[1]) * 0x1p-14f;
    acc[4] = acc[4] * s2;
    acc[5] = acc[5] * s2;
    const float s3 = high_f16(scale[1]) * 0x1p-14f;
    acc[6] = acc[6] * s3;
    acc[7] = acc[7] * s3;
    const float s4 = low_f16(scale[2]) * 0x1p-14f;
    acc[8] = acc[8] * s4;
    acc[9] = acc[9] * s4;
    const float s5 = high_f16(scale[2]) * 0x1p-14f;
    acc[10] = acc[10] * s5;
    acc[11] = acc[11] * s5;
    const float s6 = low_f16(scale[3]) * 0x1p-14f;
    acc[12] = acc[12] * s6;
    acc[13] = acc[13] * s6;
    const float s7 = high_f16(scale[3]) * 0x1p-14f;
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
