// SPDX-License-Identifier: Apache-2.0
//
// tcgen05: A and sums in tensor memory, B in shared memory. Nobody has run these on a device; bits
// of descriptors and lanes of shapes are those of the PTX ISA, to which tests/emulate holds them.
#include <string>

#include "base/joined.h"
#include "codegen/cuda/prelude.h"

namespace ladder::cuda {
namespace {

/// Sums of 16 rows by so many tokens: eight tokens are four registers of a lane.
std::string load_of(int tokens) {
  const int registers = tokens / 2;
  std::string listed, outputs;
  for (int i = 0; i < registers; ++i) {
    listed += joined(i == 0 ? "" : ", ", i % 8 == 0 ? "\"\n               \"" : "", "%", i);
    outputs += joined(i == 0 ? "" : ", ", i % 8 == 0 && i > 0 ? "\n                 " : "",
                      "\"=f\"(to[", i, "])");
  }
  return joined("template <> DEVICE void tensor_load<", tokens,
                ">(float* to, u32 from) {\n"
                "  asm volatile(\"tcgen05.ld.sync.aligned.16x256b.x",
                tokens / 8, ".b32 {", listed, "}, [%", registers,
                "];\\n\"\n               \"tcgen05.wait::ld.sync.aligned;\"\n               : ",
                outputs, "\n               : \"r\"(from));\n}\n");
}

}  // namespace

std::string_view tensor_prelude() {
  static const std::string text = joined(R"(// Tensor memory.
// An address is the lane times 2^16, plus the column. By one warp: the address goes to shared
// memory; other blocks of the multiprocessor may then ask for theirs.
template <int Columns> DEVICE void tensor_alloc(u32 to) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
               :: "r"(to), "n"(Columns) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}
template <int Columns> DEVICE void tensor_free(u32 tensors) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;"
               :: "r"(tensors), "n"(Columns) : "memory");
}
DEVICE u32 load_shared(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
DEVICE void tensor_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
DEVICE void tensor_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
// A fragment of 16 x 16 halves to 16 lanes of the warp, eight columns.
DEVICE void tensor_store(u32 to, const u32* a) {
  asm volatile("tcgen05.st.sync.aligned.16x128b.x2.b32 [%0], {%1, %2, %3, %4};"
               :: "r"(to), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]) : "memory");
}
DEVICE void tensor_wait() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
// As matrices_at() of wgmma, in the version of tcgen05: bit 46, and mode 2 of bits 61 to 63.
DEVICE u64 tensor_matrices(u32 address, u32 pieces) {
  return (u64)((address >> 4 | 1u << 16) + pieces) |
         (u64)(1024 >> 4 | 1u << 14 | 2u << 29) << 32;
}
// By one thread. `how`, the instruction descriptor: sums f32 (bit 4), the types of A and B (bits 7
// and 10: 0 is f16, 1 bf16), both along K, tokens / 8 from bit 17 on, rows / 16 from bit 24 on.
DEVICE void tensor_product(u32 sums, u32 a, u64 b, u32 how, u32 added) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0;\n"
               "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;}"
               :: "r"(sums), "r"(a), "l"(b), "r"(how), "r"(added) : "memory");
}
template <int Tokens> DEVICE void tensor_mma_f16(u32 sums, u32 a, u64 b, u32 added) {
  tensor_product(sums, a, b, 1u << 4 | Tokens / 8 << 17 | 128 / 16 << 24, added);
}
template <int Tokens> DEVICE void tensor_mma_bf16(u32 sums, u32 a, u64 b, u32 added) {
  tensor_product(sums, a, b, 1u << 4 | 1u << 7 | 1u << 10 | Tokens / 8 << 17 | 128 / 16 << 24,
                 added);
}
// By the same thread: an arrival when all of its products so far have ended.
DEVICE void tensor_commit(u32 signal) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
               :: "r"(signal) : "memory");
}
// The wait is in the same statement: registers are not there before it.
template <int Tokens> DEVICE void tensor_load(float* to, u32 from);
)",
                                         load_of(16), load_of(32), load_of(64));
  return text;
}

}  // namespace ladder::cuda
