// SPDX-License-Identifier: Apache-2.0
//
// The loops over the columns of a row, for any decoder.
#pragma once

#include "cpu/neon/decode.h"

namespace ladder::cpu::neon {
namespace {

/// Where scales and zeros meet the values.
enum class Scaling {
  sums,     ///< the scale multiplies the sum of a group; whole zeros are taken from codes
  table,    ///< they are in the decoder's table
  weights,  ///< each value, one scale per group
  lanes,    ///< each value, groups of 8 columns
  columns,  ///< each value, one scale per column
};

/// The numbers that turn decoded values into weights.
struct Affine {
  float32x4_t scale, zero, offset;
  float32x4_t operator()(float32x4_t value) const {
    // One rounding for scale * value - offset: see the generic kernel.
    return vfmaq_f32(vnegq_f32(offset), vsubq_f32(value, zero), scale);
  }
};

inline Affine of_group(const RowScales& s, std::int64_t group) {
  return {vdupq_n_f32(s.scale[group]), vdupq_n_f32(s.zero[group]), vdupq_n_f32(s.offset[group])};
}

/// The columns of a row in order: step(codes, column, weights) for every 16 of them, and where sums
/// are scaled flush(scale) after those of a group; a group may be flushed in two parts.
template <class D, Scaling kScaling, class Step, class Flush>
inline void walk(const Job& job, const typename D::Table& all, const std::uint8_t* codes,
                 const RowScales& s, Step step, Flush flush) {
  const std::int64_t bytes = job.storage == Storage::codes ? job.row_bytes : job.k * job.bits / 8;
  const std::int64_t steps = job.padded_k / kColumns;
  std::int64_t whole = bytes < D::kLoads ? 0 : (bytes - D::kLoads) / D::kBytes + 1;
  if (whole > steps) whole = steps;
  // Steps that would read past the end of the row read a copy.
  std::uint8_t last[2 * (D::kLoads > D::kBytes ? D::kLoads : D::kBytes)];
  if (whole < steps) {
    const std::int64_t left = bytes - whole * D::kBytes;
    __builtin_memset(last, 0, sizeof last);
    if (left > 0) __builtin_memcpy(last, codes + whole * D::kBytes, static_cast<std::size_t>(left));
  }
  std::int64_t column = 0, group = 0, group_end = job.group_columns;
  for (const bool copied : {false, true}) {
    const std::int64_t end = copied ? job.padded_k : whole * kColumns;
    const std::uint8_t* p = copied ? last : codes;
    while (column < end) {
      if constexpr (kScaling == Scaling::lanes || kScaling == Scaling::columns) {
        Weights w = D::values(p, all);
        for (int i = 0; i < 4; ++i) {
          const std::int64_t at = column + 4 * i;
          w.v[i] = kScaling == Scaling::lanes
                       ? of_group(s, at / 8)(w.v[i])
                       : Affine{vld1q_f32(s.scale + at), vld1q_f32(s.zero + at),
                                vld1q_f32(s.offset + at)}(w.v[i]);
        }
        step(p, column, w);
        column += kColumns, p += D::kBytes;
      } else {
        typename D::Table table = all;
        if constexpr (kScaling == Scaling::table)
          table = D::folded(all, s.scale[group], s.zero[group], s.offset[group]);
        if constexpr (kScaling == Scaling::sums && D::kZeros) table = D::less(job, s.zero[group]);
        const Affine affine = of_group(s, group);
        const std::int64_t stop = group_end < end ? group_end : end;
        for (; column < stop; column += kColumns, p += D::kBytes) {
          Weights w = D::values(p, table);
          if constexpr (kScaling == Scaling::weights)
            for (float32x4_t& v : w.v) v = affine(v);
          step(p, column, w);
        }
        if constexpr (kScaling == Scaling::sums) flush(affine.scale);
        if (column == group_end) ++group, group_end += job.group_columns;
      }
    }
  }
}

/// Weights are read ahead by this much, so that memory answers in time.
constexpr std::int64_t kAhead = 1024;

template <class D, Scaling kScaling, int kTokens>
void dot_tokens(const Job& job, const Rows& rows, const float* x, float* out) {
  constexpr int kSums = kTokens == 1 ? 4 : 2;  // independent sums hide the latency of an addition
  const auto table = D::table(job);
  const std::int64_t stride = job.stride;
  for (int r = 0; r < kRows; ++r) {
    float32x4_t totals[kTokens], sums[kTokens][kSums];
    for (int t = 0; t < kTokens; ++t) {
      totals[t] = vdupq_n_f32(0);
      for (float32x4_t& sum : sums[t]) sum = totals[t];
    }
    const auto added = [&](int t) {
      float32x4_t sum = vaddq_f32(sums[t][0], sums[t][1]);
      if constexpr (kSums == 4) sum = vaddq_f32(sum, vaddq_f32(sums[t][2], sums[t][3]));
      return sum;
    };
    walk<D, kScaling>(
        job, table, rows.codes[r], rows.scales[r],
        [&](const std::uint8_t* p, std::int64_t column, const Weights& w) {
          __builtin_prefetch(p + kAhead);
          for (int t = 0; t < kTokens; ++t)
            for (int i = 0; i < 4; ++i)
              sums[t][i % kSums] =
                  vfmaq_f32(sums[t][i % kSums], w.v[i], vld1q_f32(x + t * stride + column + 4 * i));
        },
        [&](float32x4_t scale) {
          for (int t = 0; t < kTokens; ++t) {
            totals[t] = vfmaq_f32(totals[t], added(t), scale);
            for (float32x4_t& sum : sums[t]) sum = vdupq_n_f32(0);
          }
        });
    for (int t = 0; t < kTokens; ++t)
      out[t * kRows + r] = vaddvq_f32(kScaling == Scaling::sums ? totals[t] : added(t));
  }
}

template <class D, Scaling kScaling>
void decode_rows(const Job& job, const Rows& rows, float* out) {
  const auto table = D::table(job);
  for (int r = 0; r < kRows; ++r)
    walk<D, kScaling>(
        job, table, rows.codes[r], rows.scales[r],
        [&](const std::uint8_t*, std::int64_t column, const Weights& w) {
          for (int i = 0; i < 4; ++i) vst1q_f32(out + r * job.stride + column + 4 * i, w.v[i]);
        },
        [](float32x4_t) {});
}

/// The loops for one decoder.
struct Loops {
  void (*dot[3])(const Job&, const Rows&, const float* x, float* out);  ///< 1, 2 and 4 tokens
  void (*decode)(const Job&, const Rows&, float* out);
};

template <class D, Scaling kDot, Scaling kDecode>
inline constexpr Loops kLoops = {
    {dot_tokens<D, kDot, 1>, dot_tokens<D, kDot, 2>, dot_tokens<D, kDot, 4>},
    decode_rows<D, kDecode>};

template <class D>
const Loops& loops_of(const Job& job) {
  switch (job.grouping) {
    case Grouping::lanes: return kLoops<D, Scaling::lanes, Scaling::lanes>;
    case Grouping::columns: return kLoops<D, Scaling::columns, Scaling::columns>;
    case Grouping::blocks: break;
  }
  if constexpr (D::kFolds) {
    return kLoops<D, Scaling::table, Scaling::table>;
  } else {
    return job.float_zeros || (job.integer_zeros && !D::kZeros)
               ? kLoops<D, Scaling::weights, Scaling::weights>
               : kLoops<D, Scaling::sums, Scaling::weights>;
  }
}

}  // namespace
}  // namespace ladder::cpu::neon
