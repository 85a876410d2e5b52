// SPDX-License-Identifier: Apache-2.0
//
// Dot products that scale sums, not weights: the products of a group are summed unscaled, then one
// multiply-add per group takes the sum into the total. Zeros that are whole numbers are subtracted
// from the values, exactly; what has other zeros goes through loops.h.
#pragma once

#include "cpu/avx512/stream.h"
#include "cpu/avx512/unscaled.h"

namespace ladder::cpu::avx512 {
namespace {

/// float32 x: stream.h's P. Two vectors share a shift in Nibbles.
struct Floats {
  using X = float;
  static constexpr int kWidth = kLanes;
  using Order = std::integer_sequence<int, 0, 4, 1, 5, 2, 6, 3, 7>;
  template <class D>
  static typename D::Codes load(const std::uint8_t* p, Mask mask, const typename D::Table& table) {
    return D::load_block(p, mask, table);
  }
  static __m512 multiply_add(__m512 sum, __m512 w, const float* x) {
    return _mm512_fmadd_ps(w, _mm512_load_ps(x), sum);
  }
};

/// Four rows by kTokens tokens. 4 by 4 have more sums than registers; that some wait in memory
/// costs less than loading x for two rows at a time.
template <class D, bool kByLane, int kTokens>
inline void sum_rows(const Job& job, const Rows& rows, const float* x,
                     __m512 (&totals)[kRows][kTokens]) {
  // Local, so that the compiler need not store every one.
  __m512 sums[kRows][kTokens];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) sums[r][t] = _mm512_setzero_ps();
  const auto plain = D::table(*job.tables);
  const std::int64_t k = job.padded_k, stride = job.stride;
  const std::int64_t blocks = k / kBlock, bytes = kBlock * job.bits / 8;
  const Mask full = mask_of(bytes), last = mask_of(job.row_bytes - (blocks - 1) * bytes);
  const std::int64_t group_blocks = kByLane ? 1 : job.group_columns / kBlock;
  [[maybe_unused]] const auto lanes = [&] {
    if constexpr (kByLane)
      return Lanes(job);
    else
      return 0;
  }();
  for (std::int64_t block = 0, group = 0; block < blocks; ++group) {
    typename D::Table table[kRows];
    __m512 part[kRows][kTokens];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      table[r] = group_table<D>(job, plain, rows.scales[r], group);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) part[r][t] = _mm512_setzero_ps();
    }
    const std::int64_t end = block + group_blocks < blocks ? block + group_blocks : blocks;
    for (; block < end; ++block) {
      const std::int64_t at = block * bytes;
      prefetch(job, rows, at);
      if (bytes > 64) prefetch(job, rows, at + 64);
      const Mask mask = block + 1 < blocks ? full : last;
      typename D::Codes codes[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) codes[r] = D::load_block(rows.codes[r] + at, mask, table[r]);
      const float* column = x + block * kBlock;
      for_each_vector(
          [&](auto v) {
            constexpr int kVector = decltype(v)::value;
            __m512 tokens[kTokens];
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t)
              tokens[t] = _mm512_load_ps(column + t * stride + kVector * kLanes);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
              const __m512 w = D::template vector<kVector>(codes[r], table[r]);
#pragma GCC unroll 4
              for (int t = 0; t < kTokens; ++t)
                part[r][t] = _mm512_fmadd_ps(w, tokens[t], part[r][t]);
            }
          },
          Floats::Order{});
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m512 scale;
      if constexpr (kByLane)
        scale = lanes.spread(rows.scales[r].scale, group);
      else
        scale = _mm512_set1_ps(rows.scales[r].scale[group]);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) sums[r][t] = _mm512_fmadd_ps(part[r][t], scale, sums[r][t]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) totals[r][t] = sums[r][t];
}

template <class D, bool kByLane, int kTokens>
void dot_sums(const Job& job, const Rows& rows, const float* x, float* out) {
  __m512 sums[kRows][kTokens];
  if constexpr (kTokens == 1) {
    for (int r = 0; r < kRows; ++r)
      sums[r][0] = stream<Floats, D, kByLane>(job, rows.codes[r], rows.scales[r], x);
  } else {
    sum_rows<D, kByLane>(job, rows, x, sums);
  }
  for (int t = 0; t < kTokens; ++t)
    _mm_storeu_ps(out + t * kRows, totals(sums[0][t], sums[1][t], sums[2][t], sums[3][t]));
}

/// Four tokens pay for a folded table, which leaves one sum per product.
template <class D, class Old>
constexpr auto four_tokens() {
  if constexpr (Old::kFolds)
    return dot_folded<Old, 4>;
  else
    return dot_sums<D, false, 4>;
}

/// D takes the dot products that it can, Old the others and the decoding to memory.
template <class D, class Old>
const Loops& sums_or(const Job& job) {
  static constexpr Loops kByBlock = {
      {dot_sums<D, false, 1>, dot_sums<D, false, 2>, four_tokens<D, Old>()},
      decode_rows<Old, Grouping::blocks>};
  static constexpr Loops kByLane = {
      {dot_sums<D, true, 1>, dot_sums<D, true, 2>, dot_sums<D, true, 4>},
      decode_rows<Old, Grouping::lanes>};
  const bool blocks = job.grouping == Grouping::blocks;
  if (job.float_zeros || job.grouping == Grouping::columns) return loops_of<Old>(job);
  if (job.integer_zeros && !(D::kTakesZero && blocks)) return loops_of<Old>(job);
  return blocks ? kByBlock : kByLane;
}

}  // namespace
}  // namespace ladder::cpu::avx512
