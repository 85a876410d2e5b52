// SPDX-License-Identifier: Apache-2.0
//
// The loops over the columns of a row, for any decoder.
#pragma once

#include "cpu/avx2/decode.h"

namespace ladder::cpu::avx2 {
namespace {

inline float total(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/// Calls body(column, weights) for every 8 columns of row r, in order.
template <class D, Grouping kGrouping, class Body>
inline void for_each_vector(const Job& job, const typename D::Table& table,
                            const std::uint8_t* codes, const RowScales& s, Body body) {
  const std::uint8_t* const end =
      job.storage == Storage::codes ? codes + job.row_bytes : codes + job.k * job.bits / 8;
  const std::int64_t k = job.padded_k;
  const std::int64_t bytes = job.bits;
  if constexpr (kGrouping == Grouping::columns) {
    for (std::int64_t column = 0; column < k; column += kLanes, codes += bytes) {
      const Affine affine{_mm256_loadu_ps(s.scale + column), _mm256_loadu_ps(s.zero + column),
                          _mm256_loadu_ps(s.offset + column)};
      body(column, affine(D::values(codes, end, table)));
    }
  } else {
    for (std::int64_t column = 0, group = 0; column < k; ++group) {
      const Affine affine{_mm256_set1_ps(s.scale[group]), _mm256_set1_ps(s.zero[group]),
                          _mm256_set1_ps(s.offset[group])};
      const std::int64_t stop = column + job.group_columns < k ? column + job.group_columns : k;
      if constexpr (D::kFolds) {
        const typename D::Table folded = D::folded(table, affine);
        for (; column < stop; column += kLanes, codes += bytes)
          body(column, D::values(codes, end, folded));
      } else {
        for (; column < stop; column += kLanes, codes += bytes)
          body(column, affine(D::values(codes, end, table)));
      }
    }
  }
}

template <class D>
inline typename D::Table table_of(const Job& job) {
  if constexpr (sizeof(typename D::Table) == 1)
    return {};  // the wide formats have none
  else
    return D::table(*job.tables);
}

/// Weights are read ahead by this much, so that memory answers in time.
constexpr std::int64_t kAhead = 1024;

template <class D, Grouping kGrouping, int kTokens>
void dot_tokens(const Job& job, const Rows& rows, const float* x, float* out) {
  const auto table = table_of<D>(job);
  const std::int64_t stride = job.stride;
  for (int r = 0; r < kRows; ++r) {
    // Two sums per token, for even and odd vectors, hide the latency of an addition.
    __m256 even[kTokens], odd[kTokens];
    for (int t = 0; t < kTokens; ++t) even[t] = odd[t] = _mm256_setzero_ps();
    const std::uint8_t* const codes = rows.codes[r];
    for_each_vector<D, kGrouping>(
        job, table, codes, rows.scales[r], [&](std::int64_t column, __m256 w) {
          _mm_prefetch(reinterpret_cast<const char*>(codes + column * job.bits / 8 + kAhead),
                       _MM_HINT_T0);
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) {
            const __m256 sum =
                _mm256_fmadd_ps(w, _mm256_loadu_ps(x + t * stride + column), even[t]);
            even[t] = odd[t];
            odd[t] = sum;
          }
        });
    for (int t = 0; t < kTokens; ++t) out[t * kRows + r] = total(_mm256_add_ps(even[t], odd[t]));
  }
}

template <class D, Grouping kGrouping>
void decode_rows(const Job& job, const Rows& rows, float* out) {
  const auto table = table_of<D>(job);
  for (int r = 0; r < kRows; ++r)
    for_each_vector<D, kGrouping>(
        job, table, rows.codes[r], rows.scales[r],
        [&](std::int64_t column, __m256 w) { _mm256_storeu_ps(out + r * job.stride + column, w); });
}

/// The loops for one decoder and grouping.
struct Loops {
  void (*dot[3])(const Job&, const Rows&, const float* x, float* out);  ///< 1, 2 and 4 tokens
  void (*decode)(const Job&, const Rows&, float* out);
};

template <class D, Grouping kGrouping>
inline constexpr Loops kLoops = {
    {dot_tokens<D, kGrouping, 1>, dot_tokens<D, kGrouping, 2>, dot_tokens<D, kGrouping, 4>},
    decode_rows<D, kGrouping>};

template <class D>
const Loops& loops_of(const Job& job) {
  return job.grouping == Grouping::columns ? kLoops<D, Grouping::columns>
                                           : kLoops<D, Grouping::blocks>;
}

}  // namespace
}  // namespace ladder::cpu::avx2
