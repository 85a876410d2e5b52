// SPDX-License-Identifier: Apache-2.0
//
// One token by one row, read from its first byte to its last. Rows in lockstep would load x once
// for all of them, but the hardware reads ahead for one stream at twice the rate of four; so what
// runs side by side is the next four blocks of the row, each with a sum of its own.
#pragma once

#include <utility>

#include "cpu/avx512/loops.h"

namespace ladder::cpu::avx512 {
namespace {

/// The table of one group: of the format, or with the group's zero subtracted.
template <class D>
inline typename D::Table group_table(const Job& job, const typename D::Table& plain,
                                     [[maybe_unused]] const RowScales& s,
                                     [[maybe_unused]] std::int64_t group) {
  if constexpr (D::kTakesZero)
    if (job.integer_zeros) return D::table(*job.tables, s.zero[group]);
  return plain;
}

/// body(std::integral_constant<int, v>) for the vectors of a block.
template <class Body, int... kVectors>
inline void for_each_vector(Body body, std::integer_sequence<int, kVectors...>) {
  (body(std::integral_constant<int, kVectors>{}), ...);
}

struct None {};

/// sum over a row of x * value, in 16 lanes. P says how to multiply:
///   X, kWidth, Order                  the numbers of a vector of x; the order to take vectors in
///   load<D>(p, mask, table), multiply_add(sum, weights, x)
/// kZero: groups have tables of their own.
template <class P, class D, bool kByLane, bool kZero>
inline __m512 stream_with(const Job& job, const std::uint8_t* codes, const RowScales& s,
                          const typename P::X* x) {
  constexpr int kSide = 4;
  const auto plain = D::table(*job.tables);
  const std::int64_t blocks = job.padded_k / kBlock, bytes = kBlock * job.bits / 8;
  const std::int64_t group_blocks = kByLane ? 1 : job.group_columns / kBlock;
  [[maybe_unused]] const auto lanes = [&] {
    if constexpr (kByLane)
      return Lanes(job);
    else
      return 0;
  }();
  __m512 sum = _mm512_setzero_ps();
  std::int64_t block = 0, group = 0, within = 0;
  const auto some = [&](auto count, Mask mask) {
    constexpr int kCount = decltype(count)::value;
    std::conditional_t<kZero, typename D::Table, None> own[kCount];
    const auto table = [&](int i) -> const typename D::Table& {
      if constexpr (kZero)
        return own[i];
      else
        return plain;
    };
    typename D::Codes loaded[kCount];
    __m512 part[kCount], scale[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kZero) own[i] = D::table(*job.tables, s.zero[group]);
      loaded[i] = P::template load<D>(codes + (block + i) * bytes, mask, table(i));
      if constexpr (kByLane)
        scale[i] = lanes.spread(s.scale, group);
      else
        scale[i] = _mm512_set1_ps(s.scale[group]);
      part[i] = _mm512_setzero_ps();
      within = within + 1 == group_blocks ? 0 : within + 1;
      group += within == 0;
    }
    for_each_vector(
        [&](auto v) {
          constexpr int kVector = decltype(v)::value;
#pragma GCC unroll 4
          for (int i = 0; i < kCount; ++i)
            part[i] = P::multiply_add(part[i], D::template vector<kVector>(loaded[i], table(i)),
                                      x + (block + i) * kBlock + kVector * P::kWidth);
        },
        typename P::Order{});
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) sum = _mm512_fmadd_ps(part[i], scale[i], sum);
    block += kCount;
  };
  constexpr Mask kAll{~__mmask64{0}, ~__mmask64{0}};
  const std::int64_t whole = job.row_bytes / bytes < blocks ? job.row_bytes / bytes : blocks;
  while (block + kSide <= whole) some(std::integral_constant<int, kSide>{}, kAll);
  while (block < blocks)
    some(std::integral_constant<int, 1>{}, mask_of(job.row_bytes - block * bytes));
  return sum;
}

template <class P, class D, bool kByLane>
inline __m512 stream(const Job& job, const std::uint8_t* codes, const RowScales& s,
                     const typename P::X* x) {
  if constexpr (D::kTakesZero && !kByLane)
    if (job.integer_zeros) return stream_with<P, D, kByLane, true>(job, codes, s, x);
  return stream_with<P, D, kByLane, false>(job, codes, s, x);
}

}  // namespace
}  // namespace ladder::cpu::avx512
