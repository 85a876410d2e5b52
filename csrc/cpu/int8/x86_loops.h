// SPDX-License-Identifier: Apache-2.0
//
// The loops of the x86 kernels, for any vectors V and decoder D.
//
// V, 256 or 512 bits:
//   Int, Float, kLanes               of 32 bits
//   kTokens, kVectors                of a tile: kTokens tokens by kVectors * kLanes rows
//   dot(acc, u, x)                   acc += in each lane sum of 4 products; u as D gives it
//   dot(acc, u1, x1, u2, x2)         the same for two vectors
//   step(sum, u, x)                  sum += as dot; with kRuns in a form of its own, of which
//                                    `end(acc, sum)` adds up to `run(job)`
//   transpose(v), total(sum)         kLanes vectors of dwords; the sum of all lanes
//   and names for instructions
// D, a step of 8 * kLanes columns, the first and second halves of tokens.h side by side:
//   Table, Table table(const Codes&)
//   halves(p, end, table, first, second)  of bits * kLanes bytes at p; reads none at `end`,
//                                    or, where that is null, 16 bytes more
//   kPacked                          `packed(p, end)`, and `low`, `high` of it are the halves
#pragma once

#include <immintrin.h>

#include "cpu/int8/x86_dot.h"
#include "cpu/int8/x86_tiles.h"

namespace ladder::cpu::int8 {
namespace {

/// What there is for one V and D.
struct Loops {
  using Dot = void (*)(const Job&, const Row&, const void*, float*);
  Dot dot[2][3];  ///< [split][1, 2 or 4 tokens]
  void (*decode)(const Job&, const Row*, void*);
};

template <class V, class D>
inline constexpr Loops kLoops = {{{dot<V, D, false, 1>, dot<V, D, false, 2>, dot<V, D, false, 4>},
                                  {dot<V, D, true, 1>, dot<V, D, true, 2>, dot<V, D, true, 4>}},
                                 decode<V, D>};

/// Kernels::dot from those for 1, 2 and 4 tokens.
inline void dot_some(const Loops& loops, const Job& job, const Row& row, const void* x, int tokens,
                     float* out) {
  const auto& some = loops.dot[split(job)];
  const std::int64_t token = token_bytes(job, false);
  const auto* bytes = static_cast<const std::uint8_t*>(x);
  int t = 0;
  for (; t + 4 <= tokens; t += 4) some[2](job, row, bytes + t * token, out + t);
  for (; t + 2 <= tokens; t += 2) some[1](job, row, bytes + t * token, out + t);
  if (t < tokens) some[0](job, row, bytes + t * token, out + t);
}

/// The loops for a job's codes; D<bits, kind>.
template <class V, template <int, Codes::Kind> class D, int kBits>
const Loops& loops_of_bits(Codes::Kind kind) {
  switch (kind) {
    case Codes::Kind::identity: return kLoops<V, D<kBits, Codes::Kind::identity>>;
    case Codes::Kind::flip: return kLoops<V, D<kBits, Codes::Kind::flip>>;
    case Codes::Kind::table: break;
  }
  return kLoops<V, D<kBits, Codes::Kind::table>>;
}

template <class V, template <int, Codes::Kind> class D>
const Loops& loops_of(const Job& job) {
  using Of = const Loops& (*)(Codes::Kind);
  static constexpr Of kOf[] = {loops_of_bits<V, D, 1>, loops_of_bits<V, D, 2>,
                               loops_of_bits<V, D, 3>, loops_of_bits<V, D, 4>,
                               loops_of_bits<V, D, 5>, loops_of_bits<V, D, 6>,
                               loops_of_bits<V, D, 7>, loops_of_bits<V, D, 8>};
  return kOf[job.bits - 1](job.codes->kind);
}

template <class V, const Loops& (*loops)(const Job&), std::int64_t kMostDots>
inline constexpr Kernels kKernels = {
    .tile_rows = Tile<V>::kRows,
    .few = 4,
    .most_dots = [](const Job&) { return kMostDots; },
    .less = [](const Job&) { return 0; },
    .together = 1,
    .token_bytes = token_bytes,
    .arrange = [](const Job& job, bool tiles, const float* x, int,
                  void* out) { arrange(job, tiles, x, out); },
    .dot = [](const Job& job, const Row& row, const void* x, int tokens,
              float* out) { dot_some(loops(job), job, row, x, tokens, out); },
    .tile_bytes = tile_bytes<V>,
    .decode = [](const Job& job, const Row* rows,
                 void* tile) { loops(job).decode(job, rows, tile); },
    .multiply = multiply<V>,
    .wider = nullptr,
    .fits = nullptr};

}  // namespace
}  // namespace ladder::cpu::int8
