// SPDX-License-Identifier: Apache-2.0
//
// Kernels for bfloat16 activations; all other dtypes take those of avx512.
#include "cpu/avx512/convert.h"
#include "cpu/avx512_bf16/loops.h"
#include "cpu/avx512_bf16/multiply.h"
#include "cpu/avx512_bf16/panel.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu {
namespace {

using avx512_bf16::kBlock;

const avx512_bf16::Loops& loops(const Job& job) {
  return job.bits <= 4 ? avx512_bf16::narrow_loops(job) : avx512_bf16::wide_loops(job);
}

/// Pairs are exact when the values, less their zero, are bfloat16 numbers, and the zero can go
/// into a table: one per group of whole blocks.
bool fits(const Job& job) {
  if (job.storage != Storage::codes || !job.tables->bfloat16_exact || job.float_zeros) return false;
  if (job.grouping == Grouping::columns) return false;
  return !job.integer_zeros || (job.grouping == Grouping::blocks && job.bits <= 6);
}

void arrange(const Job& job, const void* x, Scalar, void* out) {
  const auto* from = static_cast<const std::uint16_t*>(x);
  auto* to = static_cast<std::uint16_t*>(out);
  for (std::int64_t begin = 0; begin < job.padded_k; begin += kBlock) {
    __m512i pairs[avx512_bf16::kVectors];
    avx512_bf16::pairs_of(from + begin, job.k - begin, pairs);
    for (int i = 0; i < avx512_bf16::kVectors; ++i)
      _mm512_store_si512(to + begin + i * avx512_bf16::kWords, pairs[i]);
  }
}

void dot(const Job& job, const Rows& rows, const void* arranged, int tokens, float* out) {
  dot_some<std::uint16_t>(loops(job), job, rows, arranged, tokens, out);
}

void decode(const Job& job, const Rows& rows, void* out) {
  loops(job).decode(job, rows, {job.stride, avx512_bf16::kWords}, static_cast<std::uint16_t*>(out));
}

constexpr Kernels kPairs{.block = kBlock,
                         .column_size = 2,
                         .decoded_size = 2,
                         .few = 4,
                         .most_dots = [](const Job&) -> std::int64_t { return 4; },
                         .many = 192,
                         .position = avx512::position,
                         .arrange = arrange,
                         .dot = dot,
                         .decode = decode,
                         .multiply = avx512_bf16::multiply,
                         .widen = avx512::widen,
                         .narrow = avx512::narrow,
                         .look_up = avx512::look_up,
                         .gather = avx512::gather,
                         .for_bfloat16 = nullptr};

}  // namespace

void avx512_bf16::decode_panel(const Job& job, const Rows& rows, void* out) {
  loops(job).decode(job, rows, {kWords, kHeight * kWords}, static_cast<std::uint16_t*>(out));
}

const Kernels* avx512_bf16::pairs(const Job& job) { return fits(job) ? &kPairs : nullptr; }

const Kernels& avx512_bf16_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_kernels();
    k.for_bfloat16 = [](const Job& job, std::int64_t) { return avx512_bf16::pairs(job); };
    return k;
  }();
  return kernels;
}

}  // namespace ladder::cpu
