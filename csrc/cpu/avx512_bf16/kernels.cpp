// SPDX-License-Identifier: Apache-2.0
//
// Kernels for bfloat16 activations; all other dtypes take those of avx512.
#include "cpu/avx512/convert.h"
#include "cpu/avx512_bf16/loops.h"
#include "cpu/avx512_bf16/multiply.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu {
namespace {

using avx512_bf16::kBlock;

const avx512_bf16::Loops& loops(const Job& job) {
  return job.bits <= 4 ? avx512_bf16::narrow_loops(job) : avx512_bf16::wide_loops(job);
}

/// Pairs are exact when the values, less their zero, are bfloat16 numbers, and the zero can go
/// into a table: one per group of whole blocks.
bool fits(const Job& job, std::int64_t) {
  if (job.storage != Storage::codes || !job.tables->bfloat16_exact || job.float_zeros) return false;
  if (job.grouping == Grouping::columns) return false;
  return !job.integer_zeros || (job.grouping == Grouping::blocks && job.bits <= 6);
}

void arrange(const Job& job, const void* x, Scalar, void* out) {
  const auto* from = static_cast<const std::uint16_t*>(x);
  auto* to = static_cast<std::uint16_t*>(out);
  // Word 2 j + h of vector i is column 8 j + i + 4 h: lanes below 8 lie in the first 64 columns.
  alignas(64) std::uint16_t index[32];
  for (int word = 0; word < 32; ++word)
    index[word] = static_cast<std::uint16_t>(word % 16 / 2 * 8 + word % 2 * 4);
  const __m512i base = _mm512_load_si512(index);
  for (std::int64_t begin = 0; begin < job.padded_k; begin += kBlock) {
    __m512i natural[4];
    for (int i = 0; i < 4; ++i) {
      const std::int64_t left = job.k - begin - i * 32;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (1u << left) - 1;
      natural[i] = _mm512_maskz_loadu_epi16(mask, from + begin + i * 32);
    }
    for (int i = 0; i < 4; ++i) {
      const __m512i at = _mm512_add_epi16(base, _mm512_set1_epi16(static_cast<short>(i)));
      const __m512i low = _mm512_permutex2var_epi16(natural[0], at, natural[1]);
      const __m512i high = _mm512_permutex2var_epi16(natural[2], at, natural[3]);
      _mm512_store_si512(to + begin + i * 32, _mm512_mask_blend_epi16(0xffff0000u, low, high));
    }
  }
}

void dot(const Job& job, const Rows& rows, const void* arranged, int tokens, float* out) {
  dot_some<std::uint16_t>(loops(job), job, rows, arranged, tokens, out);
}

void decode(const Job& job, const Rows& rows, void* out) {
  loops(job).decode(job, rows, static_cast<std::uint16_t*>(out));
}

constexpr Kernels kPairs{.block = kBlock,
                         .column_size = 2,
                         .few = 4,
                         .most_dots = [](const Job&) -> std::int64_t { return 4; },
                         .many = 192,
                         .position = avx512::position,
                         .tiled = false,
                         .arrange = arrange,
                         .dot = dot,
                         .decode = decode,
                         .multiply = avx512_bf16::multiply,
                         .widen = avx512::widen,
                         .narrow = avx512::narrow,
                         .look_up = avx512::look_up,
                         .gather = avx512::gather,
                         .bfloat16 = nullptr,
                         .fits = nullptr};

}  // namespace

const Kernels& avx512_bf16_kernels() {
  static const Kernels kernels = [] {
    Kernels k = avx512_kernels();
    k.bfloat16 = &kPairs;
    k.fits = fits;
    return k;
  }();
  return kernels;
}

}  // namespace ladder::cpu
