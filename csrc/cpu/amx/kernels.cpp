// SPDX-License-Identifier: Apache-2.0
//
// bfloat16 x by AMX: 16 tokens by 16 rows by 32 columns in 16 cycles. Rows whose values are
// bfloat16 numbers are decoded as for avx512_bf16, all others and those of narrow groups to
// float32, which are sums of up to three bfloat16 numbers.
#include "cpu/kernels.h"

#include "cpu/amx/pairs.h"
#include "cpu/avx512_bf16/multiply.h"

namespace ladder::cpu {
namespace {

/// Few tokens are for AVX-512: there decoding takes most of the time, and that of terms is longer.
constexpr std::int64_t kLeastTokens = 5, kLeastSplit = 14;
/// Sums of narrower groups take as long as the products of a second term, which has no groups.
constexpr std::int64_t kNarrow = 64;

/// Kernels::many of float32 x: processors with AMX reach it sooner than those that `avx512` was
/// measured on.
constexpr std::int64_t kManyFloats = 176;

template <class F>
Kernels tiles_of(Kernels k) {
  k.column_size = 2;
  k.decoded_size = 2 * F::kTerms;
  k.arrange_tile = amx::arrange_tile<F>;
  k.decode = F::decode;
  k.multiply = amx::multiply<F>;
  k.most_dots = [](const Job&) -> std::int64_t { return 0; };
  return k;
}

template <int kTerms>
const Kernels* split() {
  static const Kernels kernels = [] {
    Kernels k = tiles_of<amx::Split<kTerms>>(avx512_kernels());
    k.split = true;
    return k;
  }();
  return &kernels;
}

const Kernels* split_of(const Job& job) {
  return job.value_bits <= 8 ? split<1>() : job.value_bits <= 16 ? split<2>() : split<3>();
}

const Kernels* for_bfloat16(const Job& job, std::int64_t tokens) {
  const Kernels* const pairs = avx512_bf16::pairs(job);
  if (pairs == nullptr)
    return job.storage == Storage::codes && tokens >= kLeastSplit ? split_of(job) : nullptr;
  if (tokens < kLeastTokens) return pairs;
  static const Kernels tiles = tiles_of<amx::Pairs>(*pairs);
  static const Kernels narrow = tiles_of<amx::NarrowPairs>(*pairs);
  if (job.grouping == Grouping::blocks) return &tiles;
  const bool two_terms = job.value_bits <= 16;
  return job.group_columns < (two_terms ? kNarrow : amx::kLeastColumns) ? split_of(job) : &narrow;
}

}  // namespace

const Kernels& amx_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_kernels();
    k.many = kManyFloats;
    k.for_bfloat16 = for_bfloat16;
    return k;
  }();
  return kernels;
}

}  // namespace ladder::cpu
