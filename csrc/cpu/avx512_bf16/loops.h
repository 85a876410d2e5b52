// SPDX-License-Identifier: Apache-2.0
//
// The loops over blocks of pairs, for any decoder. Products of a group are summed unscaled, then
// one multiply-add per group takes the sum into the total.
#pragma once

#include <type_traits>

#include "cpu/avx512/stream.h"
#include "cpu/avx512_bf16/decode.h"

namespace ladder::cpu::avx512_bf16 {

/// Words from one decoded row to the next, and from one vector of a row to the next.
struct Steps {
  std::int64_t row, vector;
};

/// The loops for one decoder and grouping.
struct Loops {
  void (*dot[3])(const Job&, const Rows&, const std::uint16_t* x, float* out);  ///< 1, 2, 4 tokens
  void (*decode)(const Job&, const Rows&, const Steps&, std::uint16_t* out);
};

const Loops& narrow_loops(const Job& job);  ///< 1 to 4 bits
const Loops& wide_loops(const Job& job);    ///< 5 to 8 bits

namespace {

inline __m512 multiply_add(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

template <class D>
inline typename D::Codes load_codes(const std::uint8_t* p, Mask mask,
                                    [[maybe_unused]] const typename D::Table& table) {
  if constexpr (D::kTakesZero)
    return D::load_block(p, mask);
  else
    return D::load_block(p, mask, table);
}

using avx512::group_table;

/// Pairs: the P of avx512/stream.h.
struct Pairs {
  using X = std::uint16_t;
  static constexpr int kWidth = kWords;
  using Order = std::integer_sequence<int, 0, 1, 2, 3>;
  template <class D>
  static typename D::Codes load(const std::uint8_t* p, Mask mask, const typename D::Table& table) {
    return load_codes<D>(p, mask, table);
  }
  static __m512 multiply_add(__m512 sum, __m512i w, const std::uint16_t* x) {
    return avx512_bf16::multiply_add(sum, w, _mm512_load_si512(x));
  }
};

template <class Body>
inline void for_each_vector(Body body) {
  avx512::for_each_vector(body, Pairs::Order{});
}

/// Four rows by kTokens tokens. 4 by 4 have more sums than registers; that some wait in memory
/// costs less than loading x for two rows at a time.
template <class D, bool kByLane, int kTokens>
inline void dot_rows(const Job& job, const Rows& rows, const std::uint16_t* x,
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
      return avx512::Lanes(job);
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
      avx512::prefetch(job, rows, at);
      if (bytes > 64) avx512::prefetch(job, rows, at + 64);
      const Mask mask = block + 1 < blocks ? full : last;
      typename D::Codes codes[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) codes[r] = load_codes<D>(rows.codes[r] + at, mask, table[r]);
      for_each_vector([&](auto v) {
        constexpr int kVector = decltype(v)::value;
        __m512i tokens[kTokens];
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t)
          tokens[t] = _mm512_load_si512(x + t * stride + block * kBlock + kVector * kWords);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m512i w = D::template vector<kVector>(codes[r], table[r]);
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) part[r][t] = multiply_add(part[r][t], w, tokens[t]);
        }
      });
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
void dot(const Job& job, const Rows& rows, const std::uint16_t* x, float* out) {
  __m512 sums[kRows][kTokens];
  if constexpr (kTokens == 1) {
    for (int r = 0; r < kRows; ++r)
      sums[r][0] = avx512::stream<Pairs, D, kByLane>(job, rows.codes[r], rows.scales[r], x);
  } else {
    dot_rows<D, kByLane>(job, rows, x, sums);
  }
  for (int t = 0; t < kTokens; ++t)
    _mm_storeu_ps(out + t * kRows, avx512::totals(sums[0][t], sums[1][t], sums[2][t], sums[3][t]));
}

template <class D>
void decode(const Job& job, const Rows& rows, const Steps& steps, std::uint16_t* out) {
  const auto plain = D::table(*job.tables);
  const std::int64_t blocks = job.padded_k / kBlock, bytes = kBlock * job.bits / 8;
  const Mask full = mask_of(bytes), last = mask_of(job.row_bytes - (blocks - 1) * bytes);
  const std::int64_t group_blocks =
      job.grouping == Grouping::lanes ? blocks : job.group_columns / kBlock;
  for (int r = 0; r < kRows; ++r)
    for (std::int64_t block = 0, group = 0; block < blocks; ++group) {
      const auto table = group_table<D>(job, plain, rows.scales[r], group);
      const std::int64_t end = block + group_blocks < blocks ? block + group_blocks : blocks;
      for (; block < end; ++block) {
        const Mask mask = block + 1 < blocks ? full : last;
        _mm_prefetch(
            reinterpret_cast<const char*>(rows.codes[r] + kRows * job.row_bytes + block * bytes),
            _MM_HINT_T0);
        const auto codes = load_codes<D>(rows.codes[r] + block * bytes, mask, table);
        std::uint16_t* to = out + r * steps.row + block * kVectors * steps.vector;
        for_each_vector([&](auto v) {
          constexpr int kVector = decltype(v)::value;
          _mm512_store_si512(to + kVector * steps.vector,
                             D::template vector<kVector>(codes, table));
        });
      }
    }
}

template <class D, bool kByLane>
inline constexpr Loops kLoops = {{dot<D, kByLane, 1>, dot<D, kByLane, 2>, dot<D, kByLane, 4>},
                                 decode<D>};

template <class D>
const Loops& loops_of(const Job& job) {
  return job.grouping == Grouping::lanes ? kLoops<D, true> : kLoops<D, false>;
}

}  // namespace
}  // namespace ladder::cpu::avx512_bf16
