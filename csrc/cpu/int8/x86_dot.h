// SPDX-License-Identifier: Apache-2.0
//
// One row of the weight by a few tokens, for any vectors V and decoder D of x86_loops.h.
#pragma once

#include "cpu/int8/tokens.h"

namespace ladder::cpu::int8 {
namespace {

/// Weights are read ahead by this much, so that memory answers in time.
constexpr std::int64_t kAhead = 4096;

/// From a row's scales, one per group, to the lanes of a step.
template <class V>
struct Spread {
  typename V::Int first, second;  ///< index of each lane's group, from that of lane 0 on
  std::int64_t step_groups;       ///< groups of a step
  std::int64_t group_steps;       ///< steps of a group, or 1

  explicit Spread(const Job& job)
      : first(V::load(job.first_group)), second(V::load(job.second_group)) {
    constexpr std::int64_t kStep = 8 * V::kLanes;
    step_groups = kStep / job.group;
    group_steps = job.group > kStep ? job.group / kStep : 1;
  }
};

/// One row by kTokens tokens, read from its first byte to its last; the sums of even and of odd
/// steps hide the latency of an addition. kSplit: as tokens.h says. kZeros: zeros are stored.
template <class V, class D, bool kSplit, bool kZeros, int kTokens>
void dot_row(const Job& job, const Row& row, const void* x, float* out) {
  constexpr std::int64_t kStep = 8 * V::kLanes, kHalves = kBlock / kStep;
  using Int = typename V::Int;
  using Float = typename V::Float;
  const std::int64_t token = token_bytes(job, false), bytes = job.bits * V::kLanes;
  const auto table = D::table(*job.codes);
  const Spread<V> spread(job);
  const std::uint8_t* p = row.codes;
  const std::uint8_t* const end = p + job.row_bytes;
  const auto* pieces = static_cast<const std::uint8_t*>(x);
  [[maybe_unused]] const Int zero_more = V::broadcast(job.zero);
  [[maybe_unused]] const Float float_zero_more = V::broadcast(static_cast<float>(job.zero));
  [[maybe_unused]] const bool integers = job.integer_zeros;
  Float sums[2][kTokens];
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) sums[0][t] = sums[1][t] = V::no_floats();
  std::int64_t group = 0, within = 0;
  // Half h of a piece, from `some`, where all bytes of its codes are, or to the end of the row.
  const auto step = [&](int h, const std::uint8_t* some, Float(&sum)[kTokens]) {
    Int first, second;
    D::halves(p, some, table, first, second);
    for (std::int64_t line = 0; line < bytes; line += 64) V::prefetch(p + kAhead + line);
    const std::int64_t half = h * V::kLanes;
    const Float scale = V::spread(row.scales.scale + group, spread.first);
    [[maybe_unused]] Float scale2;
    if constexpr (kSplit) scale2 = V::spread(row.scales.scale + group, spread.second);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      const auto& piece = *reinterpret_cast<const Piece*>(pieces + t * token);
      const Int x1 = V::load(piece.first + 4 * half), x2 = V::load(piece.second + 4 * half);
      const Float x_scale = V::load(piece.scale + half);
      // What sums of products begin with; floats instead go to the total.
      const auto start = [&](const std::int32_t* x_sums, [[maybe_unused]] const Int& index,
                             [[maybe_unused]] Float s) {
        Int acc = V::load(x_sums + half);
        if constexpr (kZeros) {
          if (integers) {
            const Int z = V::to_int(V::spread(row.scales.zero + group, index));
            acc = V::multiply_low(acc, V::add(z, zero_more));
          } else {
            const Float z = V::add(V::spread(row.scales.zero + group, index), float_zero_more);
            const Float offset = V::spread(row.scales.offset + group, index);
            sum[t] = V::multiply_add(V::multiply(V::to_float(acc), x_scale),
                                     V::multiply_add(z, s, offset), sum[t]);
            acc = V::none();
          }
        }
        return acc;
      };
      const Int acc = start(piece.first_sum, spread.first, scale);
      if constexpr (kSplit) {
        const Int acc2 = start(piece.second_sum, spread.second, scale2);
        sum[t] = V::multiply_add(V::to_float(V::dot(acc, first, x1)), V::multiply(scale, x_scale),
                                 sum[t]);
        sum[t] = V::multiply_add(V::to_float(V::dot(acc2, second, x2)),
                                 V::multiply(scale2, x_scale), sum[t]);
      } else {
        sum[t] = V::multiply_add(V::to_float(V::dot(acc, first, x1, second, x2)),
                                 V::multiply(scale, x_scale), sum[t]);
      }
    }
    p += bytes;
    if (spread.step_groups != 0)
      group += spread.step_groups;
    else if (++within == spread.group_steps)
      within = 0, ++group;
    if (h == kHalves - 1) pieces += sizeof(Piece);
  };
  // Two pieces of 512 bits, or one of 256, at once, so far from the end that loads need no masks.
  const std::int64_t steps = job.padded_k / kStep;
  std::int64_t done = 0;
  for (; done + 2 <= steps && end - p >= 2 * bytes + 16; done += 2) {
    step(0, nullptr, sums[0]);
    step(kHalves - 1, nullptr, sums[1]);
  }
  for (; done < steps; ++done) step(static_cast<int>(done % kHalves), end, sums[0]);
#pragma GCC unroll 4
  for (int t = 0; t < kTokens; ++t) out[t] = V::total(V::add(sums[0][t], sums[1][t]));
}

template <class V, class D, bool kSplit, int kTokens>
void dot(const Job& job, const Row& row, const void* x, float* out) {
  if (job.integer_zeros || job.float_zeros)
    return dot_row<V, D, kSplit, true, kTokens>(job, row, x, out);
  dot_row<V, D, kSplit, false, kTokens>(job, row, x, out);
}

}  // namespace
}  // namespace ladder::cpu::int8
