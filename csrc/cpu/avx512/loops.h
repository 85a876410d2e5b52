// SPDX-License-Identifier: Apache-2.0
//
// The loops over blocks of four rows, for any decoder and grouping. Each file that includes this
// instantiates it for some decoders.
#pragma once

#include <type_traits>

#include "cpu/avx512/decode.h"

namespace ladder::cpu::avx512 {

/// The loops for one decoder and grouping.
struct Loops {
  void (*dot[3])(const Job&, const Rows&, const float* x, float* out);  ///< 1, 2 and 4 tokens
  void (*decode)(const Job&, const Rows&, const Piece&, float* out);
};

/// By decoder, one file each.
const Loops& narrow_loops(const Job& job);  ///< 1 to 4 bits
const Loops& wide_loops(const Job& job);    ///< 5 to 8 bits
const Loops& plain_loops(const Job& job);   ///< 16 and 32 bits

namespace {

/// The numbers that turn decoded values of one row into weights, for one vector or more.
struct Affine {
  __m512 scale, zero, offset;
  __m512 operator()(__m512 value) const {
    // One rounding for scale * value - offset: see the generic kernel.
    return _mm512_fmsub_ps(_mm512_sub_ps(value, zero), scale, offset);
  }
};

inline Affine broadcast(const RowScales& s, std::int64_t group) {
  return {_mm512_set1_ps(s.scale[group]), _mm512_set1_ps(s.zero[group]),
          _mm512_set1_ps(s.offset[group])};
}

/// Where the lanes of a block find their groups.
struct Lanes {
  __m512i group;        ///< of each lane, within the block
  std::int64_t groups;  ///< per block
  explicit Lanes(const Job& job) {
    groups = kBlock / job.group_columns;
    alignas(64) std::int32_t of[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      of[lane] = static_cast<std::int32_t>(lane * 8 / job.group_columns);
    group = _mm512_load_si512(of);
  }
  __m512 spread(const float* p, std::int64_t block) const {
    return _mm512_permutexvar_ps(group, _mm512_loadu_ps(p + block * groups));
  }
  Affine at(const RowScales& s, std::int64_t block) const {
    return {spread(s.scale, block), spread(s.zero, block), spread(s.offset, block)};
  }
};

/// Sums of the lanes of four vectors.
inline __m128 totals(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d e = _mm512_castps_pd(ab), f = _mm512_castps_pd(cd);
  const __m512 four = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(e, f)),
                                    _mm512_castpd_ps(_mm512_unpackhi_pd(e, f)));
  const __m256 two = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
  return _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
}

/// Reads the weights two times four rows ahead, at the same columns: the hardware follows streams
/// within a page only, and rows are shorter.
inline void prefetch(const Job& job, const Rows& rows, std::int64_t at) {
  const std::int64_t ahead = at + 2 * kRows * job.row_bytes;
  for (int r = 0; r < kRows; ++r)
    _mm_prefetch(reinterpret_cast<const char*>(rows.codes[r] + ahead), _MM_HINT_T0);
}

/// Codes of a block; `at` is its first byte in the row, `bytes` its length.
template <class D>
inline typename D::Codes load_block(const Job& job, const std::uint8_t* row, std::int64_t at,
                                    std::int64_t bytes, Mask mask) {
  if constexpr (std::is_empty_v<typename D::Table>) {
    const std::int64_t left = job.k * D::kSize - at;
    return D::load_block(row + at, left < bytes ? left : bytes);
  } else {
    return D::load_block(row + at, mask);
  }
}

/// Calls body(block, r, codes, affine_of) for every block and row of columns [begin, end);
/// affine_of(vector) is the Affine of one of the block's 8 vectors.
template <class D, Grouping kGrouping, class Body>
inline void for_each_block(const Job& job, const Rows& rows, std::int64_t begin, std::int64_t end,
                           Body body) {
  if (begin >= end) return;
  const std::int64_t blocks = job.padded_k / kBlock, bytes = kBlock * job.bits / 8;
  const Mask full = mask_of(bytes), last = mask_of(job.row_bytes - (blocks - 1) * bytes);
  const std::int64_t group_blocks =
      kGrouping == Grouping::blocks ? job.group_columns / kBlock : blocks;
  [[maybe_unused]] const auto lanes = [&] {
    if constexpr (kGrouping == Grouping::lanes)
      return Lanes(job);
    else
      return 0;
  }();
  const std::int64_t last_block = end / kBlock;
  std::int64_t block = begin / kBlock, group = block / group_blocks;
  for (; block < last_block; ++group) {
    const std::int64_t stop =
        (group + 1) * group_blocks < last_block ? (group + 1) * group_blocks : last_block;
    for (; block < stop; ++block) {
      const std::int64_t at = block * bytes;
      prefetch(job, rows, at);
      if (bytes > 64) prefetch(job, rows, at + 64);
      const Mask mask = block + 1 < blocks ? full : last;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto codes = load_block<D>(job, rows.codes[r], at, bytes, mask);
        const RowScales& s = rows.scales[r];
        if constexpr (kGrouping == Grouping::blocks) {
          const Affine affine = broadcast(s, group);
          body(block, r, codes, [&](int) { return affine; });
        } else if constexpr (kGrouping == Grouping::lanes) {
          const Affine affine = lanes.at(s, block);
          body(block, r, codes, [&](int) { return affine; });
        } else {
          body(block, r, codes, [&](int vector) {
            const std::int64_t first = block * kBlock + vector * kLanes;
            return Affine{_mm512_loadu_ps(s.scale + first), _mm512_loadu_ps(s.zero + first),
                          _mm512_loadu_ps(s.offset + first)};
          });
        }
      }
    }
  }
}

template <class D>
inline typename D::Table table_of(const Job& job) {
  if constexpr (std::is_empty_v<typename D::Table>)
    return typename D::Table{};
  else
    return D::table(*job.tables);
}

/// Row by row: a half block is decoded, scaled, and multiplied by the tokens.
template <class D, Grouping kGrouping, int kTokens>
void dot_rows(const Job& job, const Rows& rows, const float* x, float* out) {
  __m512 sums[kRows][kTokens];
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm512_setzero_ps();
  const auto table = table_of<D>(job);
  const std::int64_t stride = job.stride;
  for_each_block<D, kGrouping>(
      job, rows, 0, job.padded_k,
      [&](std::int64_t block, int r, const auto& codes, auto affine_of) {
        const auto half = [&](int which, const __m512(&values)[kHalf]) {
#pragma GCC unroll 4
          for (int i = 0; i < kHalf; ++i) {
            const __m512 w = affine_of(which * kHalf + i)(values[i]);
            const float* at = x + block * kBlock + (which * kHalf + i) * kLanes;
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t)
              sums[r][t] = _mm512_fmadd_ps(w, _mm512_load_ps(at + t * stride), sums[r][t]);
          }
        };
        __m512 values[kHalf];
        D::template vectors<0>(codes, table, values);
        half(0, values);
        D::template vectors<1>(codes, table, values);
        half(1, values);
      });
  for (int t = 0; t < kTokens; ++t)
    _mm_storeu_ps(out + t * kRows, totals(sums[0][t], sums[1][t], sums[2][t], sums[3][t]));
}

/// Four rows together, for decoders whose table takes scale and zero: a shift and a look-up give
/// a weight ready to multiply, and x is loaded once for the four.
template <class D, int kTokens>
void dot_folded(const Job& job, const Rows& rows, const float* x, float* out) {
  __m512 sums[kRows][kTokens];
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm512_setzero_ps();
  const auto base = table_of<D>(job);
  const std::int64_t k = job.padded_k, stride = job.stride;
  const std::int64_t blocks = k / kBlock, bytes = kBlock * job.bits / 8;
  const Mask full = mask_of(bytes), last = mask_of(job.row_bytes - (blocks - 1) * bytes);
  const std::int64_t group_blocks = job.group_columns / kBlock;
  for (std::int64_t block = 0, group = 0; block < blocks; ++group) {
    typename D::Table table[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) table[r].values = broadcast(rows.scales[r], group)(base.values);
    const std::int64_t end = block + group_blocks < blocks ? block + group_blocks : blocks;
    for (; block < end; ++block) {
      const std::int64_t at = block * bytes;
      prefetch(job, rows, at);
      const Mask mask = block + 1 < blocks ? full : last;
      typename D::Codes codes[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) codes[r] = D::load_block(rows.codes[r] + at, mask);
      const float* column = x + block * kBlock;
      const auto vector = [&]<int kVector>(std::integral_constant<int, kVector>) {
        __m512 tokens[kTokens];
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t)
          tokens[t] = _mm512_load_ps(column + t * stride + kVector * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m512 w = D::template vector<kVector>(codes[r], table[r]);
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) sums[r][t] = _mm512_fmadd_ps(w, tokens[t], sums[r][t]);
        }
      };
      vector(std::integral_constant<int, 0>{});
      vector(std::integral_constant<int, 1>{});
      vector(std::integral_constant<int, 2>{});
      vector(std::integral_constant<int, 3>{});
      vector(std::integral_constant<int, 4>{});
      vector(std::integral_constant<int, 5>{});
      vector(std::integral_constant<int, 6>{});
      vector(std::integral_constant<int, 7>{});
    }
  }
  for (int t = 0; t < kTokens; ++t)
    _mm_storeu_ps(out + t * kRows, totals(sums[0][t], sums[1][t], sums[2][t], sums[3][t]));
}

template <class D, Grouping kGrouping>
void decode_rows(const Job& job, const Rows& rows, const Piece& piece, float* out) {
  const auto table = table_of<D>(job);
  for_each_block<D, kGrouping>(job, rows, piece.begin, piece.end,
                               [&](std::int64_t block, int r, const auto& codes, auto affine_of) {
                                 float* to = out + r * piece.stride + block * kBlock - piece.begin;
                                 __m512 values[kHalf];
                                 D::template vectors<0>(codes, table, values);
#pragma GCC unroll 4
                                 for (int i = 0; i < kHalf; ++i)
                                   _mm512_store_ps(to + i * kLanes, affine_of(i)(values[i]));
                                 D::template vectors<1>(codes, table, values);
#pragma GCC unroll 4
                                 for (int i = 0; i < kHalf; ++i)
                                   _mm512_store_ps(to + (kHalf + i) * kLanes,
                                                   affine_of(kHalf + i)(values[i]));
                               });
}

template <class D, Grouping kGrouping>
inline constexpr Loops kLoops = {
    {dot_rows<D, kGrouping, 1>, dot_rows<D, kGrouping, 2>, dot_rows<D, kGrouping, 4>},
    decode_rows<D, kGrouping>};

template <class D>
inline constexpr Loops kFolded = {{dot_folded<D, 1>, dot_folded<D, 2>, dot_folded<D, 4>},
                                  decode_rows<D, Grouping::blocks>};

template <class D>
const Loops& loops_of(const Job& job) {
  switch (job.grouping) {
    case Grouping::blocks:
      if constexpr (D::kFolds) return kFolded<D>;
      return kLoops<D, Grouping::blocks>;
    case Grouping::lanes:
      // Formats in the natural order of columns never group by lanes.
      if constexpr (!std::is_empty_v<typename D::Table>) return kLoops<D, Grouping::lanes>;
      break;
    case Grouping::columns: break;
  }
  return kLoops<D, Grouping::columns>;
}

}  // namespace
}  // namespace ladder::cpu::avx512
