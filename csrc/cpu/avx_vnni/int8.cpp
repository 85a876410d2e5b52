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

template <int kBits>
const Loops& loops_of(Codes::Kind kind) {
  switch (kind) {
    case Codes::Kind::identity: return kLoops<V, D256<kBits, Codes::Kind::identity, false>>;
    case Codes::Kind::flip: return kLoops<V, D256<kBits, Codes::Kind::flip, false>>;
    case Codes::Kind::table: break;
  }
  return kLoops<V, D256<kBits, Codes::Kind::table, false>>;
}

const Loops& loops(const Job& job) {
  using Of = const Loops& (*)(Codes::Kind);
  static constexpr Of kOf[] = {loops_of<1>, loops_of<2>, loops_of<3>, loops_of<4>,
                               loops_of<5>, loops_of<6>, loops_of<7>, loops_of<8>};
  return kOf[job.bits - 1](job.codes->kind);
}

}  // namespace

const Kernels& avx_vnni_kernels() {
  static constexpr Kernels kernels{
      .tile_rows = Tile<V>::kRows,
      .few = 4,
      .most_dots = [](const Job&) -> std::int64_t { return 4; },
      .less = [](const Job&) { return 0; },
      .token_bytes = token_bytes,
      .arrange = arrange,
      .dot = [](const Job& job, const Row& row, const void* x, int tokens,
                float* out) { dot_some(loops(job), job, row, x, tokens, out); },
      .tile_bytes = tile_bytes<V>,
      .decode = [](const Job& job, const Row* rows,
                   void* tile) { loops(job).decode(job, rows, tile); },
      .multiply = multiply<V>};
  return kernels;
}

}  // namespace ladder::cpu::int8
