// SPDX-License-Identifier: Apache-2.0
//
// Products with x of 8 bits by vpdpbusd of 256 bits.
#include "cpu/int8/x86_256.h"

namespace ladder::cpu::int8 {
namespace {

struct V : V256 {
  static constexpr bool kRuns = false;
  static constexpr int kTokens = 4, kVectors = 2;

  static Int dot(Int acc, Int u, Int x) { return _mm256_dpbusd_avx_epi32(acc, u, x); }
  static Int dot(Int acc, Int u1, Int x1, Int u2, Int x2) { return dot(dot(acc, u1, x1), u2, x2); }
  static std::int64_t run(const Job&) { return 0; }
  /// Not the intrinsic: g++ 12 copies every sum before and after it.
  static void step(Int& sum, Int u, Int x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(u), "x"(x));
  }
};

template <int kBits, Codes::Kind kKind>
using D = D256<kBits, kKind, false>;

}  // namespace

const Kernels& avx_vnni_kernels() { return kKernels<V, loops_of<V, D>, 4>; }

}  // namespace ladder::cpu::int8
