// SPDX-License-Identifier: Apache-2.0
//
// bfloat16 x by AMX: 16 tokens by 16 rows by 32 columns in 16 cycles. Rows whose values are
// bfloat16 numbers are decoded as for avx512_bf16, all others to float32, which are sums of up to
// three bfloat16 numbers.
#include "cpu/kernels.h"

#include "cpu/amx/pairs.h"
#include "cpu/avx512_bf16/multiply.h"

namespace ladder::cpu {
namespace {

/// Few tokens are for AVX-512: there decoding takes most of the time. Terms take more of it than
/// the loops of float32, and less than those of pairs with many small groups.
constexpr std::int64_t kLeastTokens = 5, kLeastSplit = 20;
/// Groups narrower than this cost more than they save: a product has 32 columns, then its sums are
/// scaled. Terms have no groups.
constexpr std::int64_t kNarrow = 64, kLeastOneTerm = 32, kLeastTwoTerms = 256;

/// Kernels::many of float32 x: processors with AMX reach it sooner than those that `avx512` was
/// measured on.
constexpr std::int64_t kManyFloats = 176;

template <class F>
Kernels tiles_of(Kernels k) {
  k.column_size = 2;
  k.decoded_size = sizeof(typename F::Number);
  k.arrange_tile = amx::arrange_tile<F>;
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
  static const Kernels panels = [&] {
    Kernels k = tiles_of<amx::Panels>(*pairs);
    k.decode = avx512_bf16::decode_panel;
    k.by_panel = true;
    return k;
  }();
  if (job.grouping == Grouping::blocks) return &panels;
  if (job.group_columns >= kNarrow) return &tiles;
  const std::int64_t least = job.group_columns < amx::kLeastColumns ? 0
                             : job.value_bits <= 8                  ? kLeastOneTerm
                             : job.value_bits <= 16                 ? kLeastTwoTerms
                                                                    : tokens + 1;
  return tokens >= least ? split_of(job) : &tiles;
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
