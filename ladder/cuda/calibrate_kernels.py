# SPDX-License-Identifier: Apache-2.0
"""Texts of the kernels by which a GPU is measured: loops of one instruction each.

All are called ``measure``; their last arguments are ``out``, int64, and a number of trips or, of
READ, of words of 16 bytes. Those that count cycles have one block on a multiprocessor and write
into ``out`` how long all of its warps take: schedulers favour some of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operand:
    dtype: str  # of torch
    ptx: str
    sum: str
    k: int  # of mma.sync and of wgmma
    since: int  # capability of mma.sync


OPERANDS = {
    "float16": Operand("float16", "f16", "f32", 16, 80),
    "bfloat16": Operand("bfloat16", "bf16", "f32", 16, 80),
    "int8": Operand("int8", "s8", "s32", 32, 80),
    "float8_e4m3": Operand("float8_e4m3fn", "e4m3", "f32", 32, 89),
}
#: Of a block: four warps, or one of two warpgroups, for each scheduler.
WARP_THREADS, GROUP_THREADS, INTEGER_THREADS = 512, 256, 1024
#: Of a trip of a warp, which has as many sums.
WARP_STEPS = 8
#: Of a trip of a warpgroup.
GROUP_STEPS = 4


def _shape(operand: str, capability: int) -> tuple[int, int, int] | None:
    """m, n, k of mma.sync, or None where there is none. Turing's are smaller."""
    if capability < 80:
        return {"float16": (16, 8, 8), "int8": (8, 8, 16)}.get(operand)
    row = OPERANDS[operand]
    return (16, 8, row.k) if capability >= row.since else None


def warp_products(operand: str, capability: int) -> int:
    m, n, k = _shape(operand, capability) or (0, 0, 0)
    return m * n * k * WARP_STEPS


def group_products(operand: str) -> int:
    """Of a warp, a quarter of a warpgroup's."""
    return 64 * 256 * OPERANDS[operand].k * GROUP_STEPS // 4


def warp_text(operand: str, capability: int) -> str:
    """A loop of mma.sync on registers, in chains that hide each other; "" where there is none."""
    shape = _shape(operand, capability)
    if shape is None:
        return ""
    row, (m, n, k) = OPERANDS[operand], shape
    whole = row.sum == "s32"
    of_a = m * k * (1 if whole or row.ptx == "e4m3" else 2) // 128
    of_b, of_d = of_a * n // m, m * n // 32
    kind, letter = ("int", "r") if whole else ("float", "f")
    places = [f"%{i}" for i in range(of_d + of_a + of_b)]
    d, a, b = places[:of_d], places[of_d : of_d + of_a], places[of_d + of_a :]
    listed = ["{" + ", ".join(each) + "}" for each in (d, a, b, d)]
    name = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{row.sum}.{row.ptx}.{row.ptx}.{row.sum}"
    outs = ", ".join(f'"+{letter}"(d[i][{j}])' for j in range(of_d))
    # Two sets in turn, so that operands change.
    ins = ", ".join(
        [f'"r"(a[i & 1][{j}])' for j in range(of_a)] + [f'"r"(b[i & 1][{j}])' for j in range(of_b)]
    )
    return f"""
extern "C" __global__ void __launch_bounds__({WARP_THREADS}) measure(
    const unsigned* x, long long* out, unsigned trips) {{
  unsigned a[2][{of_a}], b[2][{of_b}];
  {kind} d[{WARP_STEPS}][{of_d}] = {{}};
  x += threadIdx.x;
  for (int s = 0; s < 2; ++s) {{
    for (int j = 0; j < {of_a}; ++j) a[s][j] = x[{WARP_THREADS} * (8 * s + j)];
    for (int j = 0; j < {of_b}; ++j) b[s][j] = x[{WARP_THREADS} * (8 * s + 4 + j)];
  }}
  __syncthreads();
  const long long start = clock64();
  for (unsigned t = 0; t < trips; ++t) {{
#pragma unroll
    for (int i = 0; i < {WARP_STEPS}; ++i)
      asm volatile("{name} {", ".join(listed)};" : {outs} : {ins});
  }}
  __syncthreads();
  const long long cycles = clock64() - start;
  {kind} sum = 0;
  for (int i = 0; i < {WARP_STEPS}; ++i)
    for (int j = 0; j < {of_d}; ++j) sum += d[i][j];
  if (threadIdx.x == 0) out[blockIdx.x] = cycles;
  if (sum == {kind}(12345)) out[blockIdx.x] = 0;
}}"""


def group_text(operand: str) -> str:
    """A loop of wgmma of 64 x 256 by two warpgroups, both operands in shared memory."""
    row, count = OPERANDS[operand], 128
    whole = row.sum == "s32"
    kind, letter = ("int", "r") if whole else ("float", "f")
    sums = ", ".join(f"%{i}" for i in range(count))
    scales = {"f16": ", 1, 1, 0, 0", "bf16": ", 1, 1, 0, 0", "s8": "", "e4m3": ", 1, 1"}[row.ptx]
    name = f"wgmma.mma_async.sync.aligned.m64n256k{row.k}.{row.sum}.{row.ptx}.{row.ptx}"
    # 2 and 8 KiB for each step of 32 bytes of K, in the descriptors' units of 16.
    steps = "".join(
        f'    "{name} {{{sums}}}, a{i}, b{i}, p{scales};\\n"\n' for i in range(GROUP_STEPS)
    )
    offsets = "".join(
        f'    "add.s64 a{i}, %{count}, {128 * (i % 2)};\\n"\n'
        f'    "add.s64 b{i}, %{count + 1}, {512 * (i % 2)};\\n"\n'
        for i in range(GROUP_STEPS)
    )
    names = ", ".join(f"a{i}, b{i}" for i in range(GROUP_STEPS))
    outs = ", ".join(f'"+{letter}"(d[{i}])' for i in range(count))
    return f"""
extern "C" __global__ void __launch_bounds__({GROUP_THREADS}) measure(
    const uint4* x, long long* out, unsigned trips) {{
  __shared__ __align__(1024) uint4 a[2][256], b[1024];
  for (int i = threadIdx.x; i < 512; i += 256) a[i / 256][i % 256] = x[i];
  for (int i = threadIdx.x; i < 1024; i += 256) b[i] = x[512 + i];
  {kind} d[{count}] = {{}};
  const auto descriptor = [](const void* at) {{
    const unsigned long long address = __cvta_generic_to_shared(at);
    // Without swizzle: 8 rows of 16 bytes together, 128 bytes apart along K, 256 along rows.
    return (address >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32;
  }};
  const unsigned long long of_a = descriptor(a[threadIdx.x / 128]), of_b = descriptor(b);
  __syncthreads();
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const long long start = clock64();
  for (unsigned t = 0; t < trips; ++t) {{
    asm volatile(
    "{{ .reg .b64 {names}; .reg .pred p; setp.eq.u32 p, 0, 0;\\n"
{offsets}    "wgmma.fence.sync.aligned;\\n"
{steps}    "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }}\\n"
    : {outs} : "l"(of_a), "l"(of_b) : "memory");
  }}
  __syncthreads();
  const long long cycles = clock64() - start;
  {kind} sum = 0;
  for (int i = 0; i < {count}; ++i) sum += d[i];
  if (threadIdx.x == 0) out[blockIdx.x] = cycles;
  if (sum == {kind}(12345)) out[blockIdx.x] = 0;
}}"""


READ = """
extern "C" __global__ void __launch_bounds__(512) measure(
    const uint4* x, long long* out, unsigned count) {
  unsigned sum = 0;
  const unsigned long long step = 512ull * gridDim.x;
  for (int pass = 0; pass < PASSES; ++pass) {
    // From another multiprocessor each time, and past the first-level cache in any case.
    const unsigned block = (blockIdx.x + 7 * pass) % gridDim.x;
    unsigned long long i = 512ull * block + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
      uint4 v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = __ldcg(x + i + j * step);
#pragma unroll
      for (int j = 0; j < 4; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < count; i += step) sum += __ldcg(x + i).x;
  }
  if (sum == 12345) out[0] = sum;
}"""

INTEGERS = """
extern "C" __global__ void __launch_bounds__(1024) measure(long long* out, unsigned trips) {
  unsigned v[8];
  for (int i = 0; i < 8; ++i) v[i] = threadIdx.x * 77 + i;
  const unsigned b = threadIdx.x * 3 + blockIdx.x;
  long long ns, later;
  __syncthreads();
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns) :: "memory");
  const long long start = clock64();
  for (unsigned t = 0; t < trips; ++t) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      asm volatile("lop3.b32 %0, %0, %1, %2, 0xe8;"
                   : "+r"(v[i % 8]) : "r"(v[(i + 1) % 8]), "r"(b));
  }
  __syncthreads();
  const long long cycles = clock64() - start;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(later) :: "memory");
  unsigned sum = 0;
  for (int i = 0; i < 8; ++i) sum += v[i];
  if (threadIdx.x == 0) out[blockIdx.x] = cycles, out[gridDim.x + blockIdx.x] = later - ns;
  if (sum == 12345) out[blockIdx.x] = 0;
}"""

LATENCY = """
extern "C" __global__ void measure(const unsigned* x, long long* out, unsigned steps) {
  // From where the call before has ended, so that no step is one that L2 still has.
  unsigned at = out[0];
  for (unsigned i = 0; i < steps; ++i) at = __ldcg(x + at);
  out[0] = at;
}"""

TICKET = """
extern "C" __global__ void measure(unsigned* x, long long* out, unsigned steps) {
  unsigned sum = 0;
  if (threadIdx.x == 0) {
    for (unsigned i = 0; i < steps; ++i) {
      __threadfence();
      sum += atomicAdd(x + (sum & 1), 2u);
      __threadfence();
    }
  }
  if (sum == 1) out[0] = sum;
}"""

CLUSTER = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) measure(
    unsigned* x, long long* out, unsigned steps) {
  for (unsigned i = 0; i < steps; ++i) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}"""
