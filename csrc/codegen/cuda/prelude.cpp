// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/prelude.h"

#include <string>

#include "base/joined.h"
#include "codegen/emit/plain_functions.h"

namespace ladder::cuda {

std::string_view prelude() {
  static const std::string text =
      joined(R"(typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
#define DEVICE __device__ __forceinline__
struct __align__(16) Words4 { u32 w[4]; };
struct __align__(8) Words2 { u32 w[2]; };
struct __align__(4) Words1 { u32 w[1]; };

// Global memory. "constant" data may use the read-only path; "once" is not kept in L1.
DEVICE Words4 load_once(const Words4* p) {
  Words4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
  return v;
}
template <class T> DEVICE T load_once(const T* p) { return *p; }
// The same where it is written. Loads of the read-only path the assembler moves behind all that
// follows until just before their use; others not past keep_order(), which costs a no-op.
DEVICE Words4 load_now(const Words4* p) {
  Words4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p) : "memory");
  return v;
}
DEVICE Words2 load_now(const Words2* p) {
  Words2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p) : "memory");
  return v;
}
DEVICE Words1 load_now(const Words1* p) {
  Words1 v;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v.w[0]) : "l"(p) : "memory");
  return v;
}
DEVICE void keep_order() {
  u32 lanes;
  asm volatile("mov.u32 %0, 0xffffffff;" : "=r"(lanes));  // unknown to the assembler
  asm volatile("bar.warp.sync %0;" :: "r"(lanes) : "memory");
}
DEVICE Words4 load_constant(const Words4* p) {
  Words4 v;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p));
  return v;
}
template <class T> DEVICE T load_constant(const T* p) { return *p; }
// Written by other blocks of this kernel: from L2, never from a stale L1.
DEVICE Words4 load_fresh(const Words4* p) {
  Words4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "l"(p) : "memory");
  return v;
}
DEVICE Words2 load_fresh(const Words2* p) {
  Words2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p)
               : "memory");
  return v;
}
DEVICE Words1 load_fresh(const Words1* p) {
  Words1 v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v.w[0]) : "l"(p) : "memory");
  return v;
}

// Written by the preceding kernel: not before it has ended.
DEVICE u32 load_element(const u16* p) {
  u16 v;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
  return v;
}

// Shared memory.
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE u32 peer_address(u32 address, u32 rank) {
  u32 out;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(address), "r"(rank));
  return out;
}
DEVICE void load_peer(Words4& v, u32 at) {
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3]) : "r"(at) : "memory");
}
DEVICE void load_peer(Words2& v, u32 at) {
  asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.w[0]), "=r"(v.w[1]) : "r"(at) : "memory");
}
DEVICE void load_peer(Words1& v, u32 at) {
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v.w[0]) : "r"(at) : "memory");
}

// `value`, so that nothing that is made of it is kept for the next time.
DEVICE u32 anew(u32 value) {
  u32 out;
  asm volatile("mov.u32 %0, %1;" : "=r"(out) : "r"(value));
  return out;
}

// Ordering.
DEVICE void barrier() { asm volatile("barrier.sync.aligned 0;" ::: "memory"); }
DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
DEVICE void dependent_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void dependent_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// How many blocks came before; the last one of `expected` leaves the counter at zero.
DEVICE u32 ticket(u32* counter, u32 expected, u32* shared_result) {
  barrier();
  if (threadIdx.x == 0) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(before) : "l"(counter) : "memory");
    if (before == expected - 1) *counter = 0;
    *shared_result = before;
  }
  barrier();
  return *shared_result;
}

// Operands.
template <int Registers> DEVICE void load_matrix(u32* to, u32 address);
template <> DEVICE void load_matrix<4>(u32* to, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
template <> DEVICE void load_matrix<2>(u32* to, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
}
// Codes of 2 bits, every 3 made 1.
DEVICE u32 three_values(u32 word) { return word & ~(word << 1 & 0xaaaaaaaau); }
// One operation with a mask in its text; the compiler by itself makes it two, each with a constant.
DEVICE u32 and_or(u32 a, u32 mask, u32 b) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(b));
  return d;
}
// Bits of `b` where `mask` is set, of `a` elsewhere; the compiler by itself shifts and masks each.
DEVICE u32 select_bits(u32 a, u32 b, u32 mask) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xd8;" : "=r"(d) : "r"(a), "r"(b), "r"(mask));
  return d;
}
DEVICE u32 fma_f16(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Halves of magnitudes whose top exponent is one of numbers: an exponent less, or the bits one to
// the right, whichever is more.
DEVICE u32 halved_f16(u32 magnitudes) {
#if __CUDA_ARCH__ >= 900
  u32 less, more;
  asm("add.s16x2 %0, %1, %2;" : "=r"(less) : "r"(magnitudes), "r"(0xfc00fc00u));
  asm("max.s16x2 %0, %1, %2;" : "=r"(more) : "r"(less), "r"(magnitudes >> 1));
  return more;
#else  // an exponent less in the upper half of the exponents, times 1 there and 1/2 elsewhere
  const u32 upper = magnitudes >> 4 & 0x04000400u;
  return fma_f16(magnitudes - upper, 0x38003800u + upper, 0u);
#endif
}
// Sums of products of bytes, or of halves and the lowest two bytes, plus c: addresses of entries.
DEVICE u32 dot_bytes(u32 a, u32 b, u32 c) {
  u32 d;
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
DEVICE u32 dot_halves(u32 a, u32 b, u32 c) {
  u32 d;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Of a table in shared memory, which nobody writes after a barrier: no other access holds it up.
DEVICE u32 table_entry(u32 address) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
DEVICE u32 low_halves(u32 low, u32 high) { return __byte_perm(low, high, 0x5410); }

// Numbers.
DEVICE float as_float(u32 bits) { float f; asm("mov.b32 %0, %1;" : "=f"(f) : "r"(bits)); return f; }
DEVICE u32 as_bits(float f) { u32 bits; asm("mov.b32 %0, %1;" : "=r"(bits) : "f"(f)); return bits; }
DEVICE float low_f16(u32 both) {
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(both));
  return f;
}
DEVICE float high_f16(u32 both) {
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(both));
  return f;
}
DEVICE float low_bf16(u32 both) { return as_float(both << 16); }
DEVICE float high_bf16(u32 both) { return as_float(both & 0xffff0000u); }
)",
             codegen::kScaleFunctions, codegen::kMagnitudeFunctions,
             R"(// As numbers of bf16, which are in the order of the integers where none is NaN.
DEVICE u32 halves_at_least(u32 both, u32 least) {
#if __CUDA_ARCH__ >= 900
  u32 magnitude, mask;
  asm("abs.bf16x2 %0, %1;" : "=r"(magnitude) : "r"(both));
  asm("set.ge.u32.bf16x2 %0, %1, %2;" : "=r"(mask) : "r"(magnitude), "r"(least));
  return mask;
#else
  return at_least_by_sums(both, least);
#endif
}
)",
             since_ampere());
  return text;
}

}  // namespace ladder::cuda
