// SPDX-License-Identifier: Apache-2.0
//
// The loops over the columns of a row, for any decoder. Rows are read one at a time, from the
// first byte to the last: the hardware reads ahead for one stream better than for four.
//
// Two kinds of dot products. The products of a group are summed unscaled, and the sum is scaled
// (dot_sums); where weights have offsets, or scales by column, every weight is scaled
// (dot_weights).
#pragma once

#include "cpu/avx2/decode.h"

namespace ladder::cpu::avx2 {

/// The loops for one decoder and grouping.
struct Loops {
  int vectors;  ///< D::kVectors, for the order of columns
  void (*dot[3])(const Job&, const Rows&, const float* x, float* out);  ///< 1, 2 and 4 tokens
  void (*decode)(const Job&, const Rows&, float* out);
};

/// By decoder, one file each. They depend on the format and the kind of zeros only.
const Loops& narrow_loops(const Job& job);  ///< 1 to 4 bits
const Loops& wide_loops(const Job& job);    ///< 5 to 8 bits
const Loops& loads_loops(const Job& job);   ///< of 6 to 8 bits, any values
const Loops& plain_loops(const Job& job);   ///< 16 and 32 bits

extern const Panels kPanels;  ///< products of decoded tiles and many tokens

namespace {

inline float total(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

template <class D>
constexpr std::int64_t kUnit = kLanes* D::kVectors;
template <class D>
constexpr std::int64_t kStep = kLanes* D::kSteps;

/// Weights are read ahead by this much, so that memory answers in time.
constexpr std::int64_t kAhead = 1024;

/// The steps of a row. One that ends past the row is read from a copy with zeros behind.
template <class D>
class Steps {
 public:
  Steps(const Job& job, const std::uint8_t* codes)
      : codes_(codes),
        size_(job.storage == Storage::codes ? job.row_bytes : job.k * job.bits / 8),
        bytes_(kStep<D> * job.bits / 8) {
    if constexpr (D::kChecked) {
      checks_ = job.tables->nan_mask != 0;
      mask_ = _mm256_set1_epi8(static_cast<char>(job.tables->nan_mask));
      code_ = _mm256_set1_epi8(static_cast<char>(job.tables->nan_code));
      found_ = _mm256_setzero_si256();
    }
  }
  const std::uint8_t* at(std::int64_t column) {
    const std::int64_t begin = column / kStep<D> * bytes_;
    _mm_prefetch(reinterpret_cast<const char*>(codes_ + begin + kAhead), _MM_HINT_T0);
    const std::uint8_t* p = codes_ + begin;
    if (begin + bytes_ > size_) {
      for (std::int64_t i = 0; i < bytes_; ++i) rest_[i] = begin + i < size_ ? p[i] : 0;
      p = rest_;
    }
    if constexpr (D::kChecked)
      if (checks_)
        found_ =
            _mm256_or_si256(found_, _mm256_cmpeq_epi8(_mm256_and_si256(load_32(p), mask_), code_));
    return p;
  }
  /// Whether one of the steps held a NaN that the decoder takes for a number. Then everything that
  /// is multiplied by the row is NaN.
  bool nan() const {
    if constexpr (D::kChecked) return _mm256_movemask_epi8(found_) != 0;
    return false;
  }

 private:
  const std::uint8_t* codes_;
  std::int64_t size_, bytes_;
  bool checks_ = false;
  __m256i mask_, code_, found_;
  std::uint8_t rest_[kStep<D> * 4];
};

constexpr float kNan = __builtin_nanf("");

/// Where the lanes of a unit find their groups, of 2^n columns: see Grouping::lanes.
class Lanes {
 public:
  Lanes(const Job& job, std::int64_t unit) {
    // A division for each unit takes longer than its products.
    while (job.group_columns >> shift_ > 1) ++shift_;
    alignas(32) std::int32_t of[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      of[lane] = static_cast<std::int32_t>(lane * unit / kLanes >> shift_);
    group_ = _mm256_load_si256(reinterpret_cast<const __m256i*>(of));
  }
  __m256 spread(const float* p, std::int64_t column) const {
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(p + (column >> shift_)), group_);
  }

 private:
  int shift_ = 0;
  __m256i group_;
};

template <class D>
inline typename D::Table table_of(const Job& job) {
  if constexpr (sizeof(typename D::Table) == 1)
    return {};  // the wide formats have none
  else
    return D::table(*job.tables);
}

/// kByLane: groups narrower than a step. kSubtract: zeros are subtracted from the values.
template <class D, bool kByLane, bool kSubtract, int kTokens>
void dot_sums(const Job& job, const Rows& rows, const float* x, float* out) {
  const auto plain = table_of<D>(job);
  const std::int64_t k = job.padded_k, stride = job.stride;
  [[maybe_unused]] const Lanes lanes(job, kUnit<D>);
  [[maybe_unused]] __m256 factor;
  if constexpr (D::kFactor) factor = _mm256_set1_ps(job.tables->half_factor);
  for (int r = 0; r < kRows; ++r) {
    const RowScales& s = rows.scales[r];
    Steps<D> steps(job, rows.codes[r]);
    __m256 totals[kTokens];
    for (int t = 0; t < kTokens; ++t) totals[t] = _mm256_setzero_ps();
    const auto add = [&](int t, __m256 sum, __m256 scale) {
      if constexpr (D::kFactor) sum = _mm256_mul_ps(sum, factor);
      totals[t] = _mm256_fmadd_ps(sum, scale, totals[t]);
    };
    if constexpr (kByLane) {
      for (std::int64_t column = 0; column < k; column += kStep<D>) {
        auto table = plain;
        [[maybe_unused]] __m256 zero;
        if constexpr (D::kZeros != Zeros::none) {  // such decoders have one unit in a step
          zero = lanes.spread(s.zero, column);
          if constexpr (D::kZeros == Zeros::number && !kSubtract)
            if (job.integer_zeros) table = D::less(plain, zero);
        }
        __m256 w[D::kSteps];
        D::values(steps.at(column), table, w);
        if constexpr (kSubtract)
          for (__m256& value : w) value = _mm256_sub_ps(value, zero);
#pragma GCC unroll 4
        for (int unit = 0; unit < D::kSteps; unit += D::kVectors) {
          const __m256 scale = lanes.spread(s.scale, column + unit * kLanes);
#pragma GCC unroll 4
          for (int t = 0; t < kTokens; ++t) {
            const float* at = x + t * stride + column + unit * kLanes;
            __m256 sum = _mm256_mul_ps(w[unit], _mm256_loadu_ps(at));
#pragma GCC unroll 8
            for (int i = 1; i < D::kVectors; ++i)
              sum = _mm256_fmadd_ps(w[unit + i], _mm256_loadu_ps(at + i * kLanes), sum);
            add(t, sum, scale);
          }
        }
      }
    } else {
      for (std::int64_t column = 0, group = 0; column < k; ++group) {
        auto table = plain;
        const __m256 zero = _mm256_set1_ps(s.zero[group]);
        if constexpr ((D::kZeros == Zeros::table || D::kZeros == Zeros::number) && !kSubtract)
          if (job.integer_zeros || job.float_zeros) table = D::less(plain, zero);
        // Two sums per token, for even and odd vectors, hide the latency of an addition.
        __m256 even[kTokens], odd[kTokens];
        for (int t = 0; t < kTokens; ++t) even[t] = odd[t] = _mm256_setzero_ps();
        const std::int64_t stop = column + job.group_columns < k ? column + job.group_columns : k;
        for (; column < stop; column += kStep<D>) {
          __m256 w[D::kSteps];
          D::values(steps.at(column), table, w);
          if constexpr (kSubtract)
            for (__m256& value : w) value = _mm256_sub_ps(value, zero);
#pragma GCC unroll 8
          for (int i = 0; i < D::kSteps; ++i)
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t) {
              const __m256 token = _mm256_loadu_ps(x + t * stride + column + i * kLanes);
              __m256& sum = i % 2 == 0 ? even[t] : odd[t];
              sum = _mm256_fmadd_ps(w[i], token, sum);
            }
        }
        const __m256 scale = _mm256_set1_ps(s.scale[group]);
        for (int t = 0; t < kTokens; ++t) add(t, _mm256_add_ps(even[t], odd[t]), scale);
      }
    }
    for (int t = 0; t < kTokens; ++t) out[t * kRows + r] = steps.nan() ? kNan : total(totals[t]);
  }
}

/// The numbers that turn decoded values into weights.
struct Affine {
  __m256 scale, zero, offset;
  __m256 operator()(__m256 value) const {
    // One rounding for scale * value - offset: see the generic kernel.
    return _mm256_fmsub_ps(_mm256_sub_ps(value, zero), scale, offset);
  }
};

/// Calls body(column, weights) for every step of a row, the weights scaled. Returns Steps::nan.
template <class D, Grouping kGrouping, class Body>
inline bool for_each_step(const Job& job, const typename D::Table& table, const std::uint8_t* codes,
                          const RowScales& s, Body body) {
  Steps<D> steps(job, codes);
  const Lanes lanes(job, kUnit<D>);
  std::int64_t group = -1, stop = 0;
  const __m256 none = _mm256_setzero_ps();
  Affine affine{none, none, none};
  for (std::int64_t column = 0; column < job.padded_k; column += kStep<D>) {
    if (kGrouping == Grouping::blocks && column == stop) {
      ++group;
      stop += job.group_columns;
      affine = {_mm256_set1_ps(s.scale[group]), _mm256_set1_ps(s.zero[group]),
                _mm256_set1_ps(s.offset[group])};
    }
    __m256 w[D::kSteps];
    D::values(steps.at(column), table, w);
#pragma GCC unroll 8
    for (int i = 0; i < D::kSteps; ++i) {
      const std::int64_t at = column + i * kLanes;
      if constexpr (kGrouping == Grouping::lanes) {
        if (i % D::kVectors == 0)
          affine = {lanes.spread(s.scale, at), lanes.spread(s.zero, at),
                    lanes.spread(s.offset, at)};
      } else if constexpr (kGrouping == Grouping::columns) {
        affine = {_mm256_loadu_ps(s.scale + at), _mm256_loadu_ps(s.zero + at),
                  _mm256_loadu_ps(s.offset + at)};
      }
      if constexpr (D::kFactor) w[i] = _mm256_mul_ps(w[i], _mm256_set1_ps(job.tables->half_factor));
      w[i] = affine(w[i]);
    }
    body(column, w);
  }
  return steps.nan();
}

template <class D, Grouping kGrouping, int kTokens>
void dot_weights(const Job& job, const Rows& rows, const float* x, float* out) {
  const auto table = table_of<D>(job);
  for (int r = 0; r < kRows; ++r) {
    __m256 even[kTokens], odd[kTokens];
    for (int t = 0; t < kTokens; ++t) even[t] = odd[t] = _mm256_setzero_ps();
    const bool nan = for_each_step<D, kGrouping>(
        job, table, rows.codes[r], rows.scales[r],
        [&](std::int64_t column, const __m256(&w)[D::kSteps]) {
#pragma GCC unroll 8
          for (int i = 0; i < D::kSteps; ++i)
#pragma GCC unroll 4
            for (int t = 0; t < kTokens; ++t) {
              const __m256 token = _mm256_loadu_ps(x + t * job.stride + column + i * kLanes);
              __m256& sum = i % 2 == 0 ? even[t] : odd[t];
              sum = _mm256_fmadd_ps(w[i], token, sum);
            }
        });
    for (int t = 0; t < kTokens; ++t)
      out[t * kRows + r] = nan ? kNan : total(_mm256_add_ps(even[t], odd[t]));
  }
}

template <class D, Grouping kGrouping>
void decode_rows(const Job& job, const Rows& rows, float* out) {
  const auto table = table_of<D>(job);
  for (int r = 0; r < kRows; ++r) {
    float* to = out + r * job.stride;
    const bool nan =
        for_each_step<D, kGrouping>(job, table, rows.codes[r], rows.scales[r],
                                    [&](std::int64_t column, const __m256(&w)[D::kSteps]) {
#pragma GCC unroll 8
                                      for (int i = 0; i < D::kSteps; ++i)
                                        _mm256_storeu_ps(to + column + i * kLanes, w[i]);
                                    });
    if (nan) to[0] = kNan;
  }
}

template <class D, bool kByLane, bool kSubtract>
inline constexpr Loops kSums = {
    D::kVectors,
    {dot_sums<D, kByLane, kSubtract, 1>, dot_sums<D, kByLane, kSubtract, 2>,
     dot_sums<D, kByLane, kSubtract, 4>},
    decode_rows<D, kByLane ? Grouping::lanes : Grouping::blocks>};

template <class D, Grouping kGrouping>
inline constexpr Loops kWeights = {
    D::kVectors,
    {dot_weights<D, kGrouping, 1>, dot_weights<D, kGrouping, 2>, dot_weights<D, kGrouping, 4>},
    decode_rows<D, kGrouping>};

template <class D>
const Loops& loops_of(const Job& job) {
  if (job.grouping == Grouping::columns) return kWeights<D, Grouping::columns>;
  const bool by_lane = job.group_columns % kStep<D> != 0;
  if constexpr (D::kZeros != Zeros::none) {
    if (job.offsets) return by_lane ? kWeights<D, Grouping::lanes> : kWeights<D, Grouping::blocks>;
    const bool in_table =
        (D::kZeros == Zeros::table && !by_lane) || (D::kZeros == Zeros::number && !job.float_zeros);
    if ((job.integer_zeros || job.float_zeros) && !in_table)
      return by_lane ? kSums<D, true, true> : kSums<D, false, true>;
  }
  return by_lane ? kSums<D, true, false> : kSums<D, false, false>;
}

}  // namespace
}  // namespace ladder::cpu::avx2
