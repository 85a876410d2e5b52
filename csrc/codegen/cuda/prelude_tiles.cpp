// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/joined.h"
#include "codegen/cuda/prelude.h"
#include "codegen/emit/plain_functions.h"

namespace ladder::cuda {

std::string_view tile_prelude() {
  static const std::string text =
      joined(R"(// Element by element. Instructions with a rounding are never contracted.
#define UNARY(NAME, TEXT) \
  DEVICE float NAME##_f32(float a) { float d; asm(TEXT " %0, %1;" : "=f"(d) : "f"(a)); return d; }
UNARY(negate, "neg.f32")
UNARY(absolute, "abs.f32")
UNARY(reciprocal, "rcp.rn.f32")
UNARY(square_root, "sqrt.rn.f32")
UNARY(round_to_even, "cvt.rni.f32.f32")
#define BINARY(NAME, TEXT) \
  DEVICE float NAME##_f32(float a, float b) { \
    float d; \
    asm(TEXT " %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); \
    return d; \
  }
BINARY(add, "add.rn.f32")
BINARY(subtract, "sub.rn.f32")
BINARY(multiply, "mul.rn.f32")
BINARY(divide, "div.rn.f32")
BINARY(minimum, "min.f32")
BINARY(maximum, "max.f32")
)",
             codegen::kIntegerFunctions, R"(// Towards zero, into the range of u32, NaN as 0.
DEVICE u32 to_integer(float a) {
  u32 d;
  asm("cvt.rzi.u32.f32 %0, %1;" : "=r"(d) : "f"(a));
  return d;
}
DEVICE float shuffle_xor(float a, u32 mask) {
  float d;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(d) : "f"(a), "r"(mask));
  return d;
}
DEVICE void atomic_add_f32(float* to, float value) {
  asm volatile("red.global.add.f32 [%0], %1;" :: "l"(to), "f"(value) : "memory");
}

// Signals: mbarriers, and the copies that they count. From sm_90 on.
DEVICE void signal_init(u32 signal, u32 count, u32 arrivals) {
  for (u32 i = 0; i < count; ++i) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(signal + 8 * i), "r"(arrivals)
                 : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;\n"
               "fence.proxy.async.shared::cta;" ::: "memory");
}
// All blocks of the cluster are there, with their signals; loads on their way are not waited for.
DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE void signal_expect(u32 signal, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(signal), "r"(bytes) : "memory");
}
DEVICE void signal_arrive(u32 signal) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(signal) : "memory");
}
// When the asynchronous copies of this thread have ended.
DEVICE void signal_arrive_copies(u32 signal) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(signal) : "memory");
}
DEVICE void signal_await(u32 signal, u32 parity) {
  u32 done = 0;
  while (!done) {
    asm volatile("{.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(signal), "r"(parity) : "memory");
  }
}
DEVICE void copy_bulk(u32 to, const void* from, u32 bytes, u32 signal) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1], %2, [%3];"
               :: "r"(to), "l"((u64)__cvta_generic_to_global(from)), "r"(bytes), "r"(signal)
               : "memory");
}
// The same into each block of the cluster whose bit is set.
DEVICE void copy_bulk_to_all(u32 to, const void* from, u32 bytes, u32 signal, u32 blocks) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1], %2, [%3], %4;"
               :: "r"(to), "l"((u64)__cvta_generic_to_global(from)), "r"(bytes), "r"(signal),
                  "h"((u16)blocks) : "memory");
}
)");
  return text;
}

}  // namespace ladder::cuda
