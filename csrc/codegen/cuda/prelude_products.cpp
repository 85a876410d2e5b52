// SPDX-License-Identifier: Apache-2.0
//
// wgmma: products of a warpgroup, A in registers and B in shared memory.
#include <string>

#include "base/joined.h"
#include "codegen/cuda/prelude.h"

namespace ladder::cuda {

std::string_view product_prelude() {
  return R"(// Products of warpgroups.
// Rows of 128 bytes, swizzled, eight of them after the other, so many pieces of 16 bytes behind
// `address`. PTX ISA, matrix descriptors of wgmma: strides of 16 and 1024 bytes, the first unused,
// and the mode of 128 bytes. Shared addresses have 18 bits at most.
DEVICE u64 matrices_at(u32 address, u32 pieces) {
  return (u64)((address >> 4 | 1u << 16) + pieces) | (u64)(1024 >> 4 | 1u << 30) << 32;
}
DEVICE u32 swizzled(u32 byte) { return byte ^ (byte >> 3 & 0x70u); }
DEVICE void store_shared(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" :: "r"(address), "r"(value) : "memory");
}
// Registers are as they were written before.
DEVICE void mma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> DEVICE void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(Pending) : "memory");
}
// Nothing reads the sums earlier.
template <int Sums> DEVICE void after_products(float* d) {
#pragma unroll
  for (int i = 0; i < Sums; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}
template <int Sums> DEVICE void after_products(int* d) {
#pragma unroll
  for (int i = 0; i < Sums; ++i) asm volatile("" : "+r"(d[i]) :: "memory");
}
// What this thread wrote to shared memory, or has seen there, is there for what is asynchronous.
DEVICE void matrix_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int Tokens> DEVICE void mma_shared_f16(float* d, const u32* a, u64 b);
template <int Tokens> DEVICE void mma_shared_bf16(float* d, const u32* a, u64 b);
template <int Tokens> DEVICE void mma_shared_e4m3(float* d, const u32* a, u64 b);
template <int Tokens> DEVICE void mma_shared_u8(int* d, const u32* a, u64 b);
template <int Tokens> DEVICE void mma_shared_s8(int* d, const u32* a, u64 b);
template <int Tokens> DEVICE void mma_first_f16(float* d, const u32* a, u64 b);
template <int Tokens> DEVICE void mma_first_bf16(float* d, const u32* a, u64 b);
template <int Tokens> DEVICE void mma_first_e4m3(float* d, const u32* a, u64 b);
)";
}

std::string_view float_byte_prelude() {
  return R"(// Products of e4m3 by a warp.
DEVICE void mma_e4m3(float* d, const u32* a, const u32* b) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
)";
}

std::string_view whole_byte_prelude() {
  return R"(// Four whole numbers, each less its byte of `zeros`, in e4m3 times 2^-9: up to 16 distances
// are that as they are. No byte carries into the next.
DEVICE u32 whole_less_zeros(u32 codes, u32 zeros) {
  u32 distances;
  asm("vabsdiff4.u32.u32.u32 %0, %1, %2, %3;" : "=r"(distances) : "r"(codes), "r"(zeros), "r"(0u));
  return distances | (~(codes + (0x80808080u - zeros)) & 0x80808080u);
}
)";
}

std::string shared_product(const MatrixInstruction& row, Scalar a, std::int64_t tokens,
                           bool replaces) {
  const bool whole = row.accumulator == Scalar::s32;
  const std::string type(name_of(a)), of_b(name_of(operand_scalar(row).value()));
  const auto sums = tokens / 2;
  std::string listed, outputs;
  for (std::int64_t i = 0; i < sums; ++i) {
    const bool first = i == 0, wraps = i % 8 == 0;
    listed += joined(first ? "" : ", ", wraps ? "\"\n               \"" : "", "%", i);
    outputs += joined(first ? "" : ", ", wraps && !first ? "\n                 " : "",
                      replaces ? "\"=" : "\"+", whole ? "r" : "f", "\"(d[", i, "])");
  }
  return joined(
      "template <> DEVICE void mma_", replaces ? "first_" : "shared_", type, "<", tokens, ">(",
      whole ? "int" : "float",
      "* d, const u32* a, u64 b) {\n"
      "  asm volatile(\"{.reg .pred p; setp.ne.b32 p, ",
      replaces ? 0 : 1,
      ", 0;\\n\"\n"
      "               \"wgmma.mma_async.sync.aligned.m64n",
      tokens, "k", row.k, ".", name_of(row.accumulator), ".", type, ".", of_b, " {", listed,
      "}, {%", sums, ", %", sums + 1, ", %", sums + 2, ", %", sums + 3, "}, %", sums + 4,
      // Signs, and the order of B: of integers and of bytes there is one.
      whole                     ? ", p;}"
      : row.operand_bits() == 8 ? ", p, 1, 1;}"
                                : ", p, 1, 1, 0;}",
      "\"\n               : ", outputs,
      "\n               : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b));\n}\n");
}

}  // namespace ladder::cuda
