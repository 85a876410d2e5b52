// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"

#include <limits>

#include "cpu/avx2/convert.h"
#include "cpu/avx2/loops.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu {
namespace {

const avx2::Loops& loops(const Job& job) {
  if (job.storage != Storage::codes) return avx2::plain_loops(job);
  return job.bits <= 4 ? avx2::narrow_loops(job) : avx2::wide_loops(job);
}

/// Column c j + i of a unit of 8 c is lane j of vector i.
std::int64_t position(const Job& job, std::int64_t column) {
  const std::int64_t vectors = loops(job).vectors;
  const std::int64_t within = column % (vectors * avx2::kLanes);
  return column - within + within % vectors * avx2::kLanes + within / vectors;
}

void arrange(const Job& job, const void* x, Scalar dtype, void* to) {
  auto* out = static_cast<float*>(to);
  const int vectors = loops(job).vectors;
  if (vectors == 1) {
    avx2::widen(x, dtype, job.k, out);
    for (std::int64_t i = job.k; i < job.padded_k; ++i) out[i] = 0;
    return;
  }
  const __m256i strided =
      _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(vectors));
  const std::int64_t size = dtype == Scalar::f32 ? 4 : 2, unit = vectors * avx2::kLanes;
  for (std::int64_t begin = 0; begin < job.padded_k; begin += unit) {
    alignas(32) float natural[avx2::kBlock] = {};
    const std::int64_t left = job.k - begin;
    if (left > 0)
      avx2::widen(static_cast<const std::uint8_t*>(x) + begin * size, dtype,
                  left < unit ? left : unit, natural);
    for (int i = 0; i < vectors; ++i)
      _mm256_storeu_ps(out + begin + i * avx2::kLanes,
                       _mm256_i32gather_ps(natural + i, strided, 4));
  }
}

void dot(const Job& job, const Rows& rows, const void* arranged, int tokens, float* out) {
  dot_some<float>(loops(job), job, rows, arranged, tokens, out);
}

void decode(const Job& job, const Rows& rows, void* out) {
  loops(job).decode(job, rows, static_cast<float*>(out));
}

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels{.block = avx2::kBlock,
                                   .column_size = 4,
                                   .decoded_size = 4,
                                   .few = 4,
                                   .most_dots = [](const Job&) -> std::int64_t { return 4; },
                                   .many = std::numeric_limits<std::int64_t>::max(),
                                   .position = position,
                                   .arrange = arrange,
                                   .dot = dot,
                                   .decode = decode,
                                   .multiply = avx2::multiply,
                                   .widen = avx2::widen,
                                   .narrow = avx2::narrow,
                                   .look_up = look_up_each,
                                   .gather = gather_each,
                                   .for_bfloat16 = nullptr,
                                   .panels = &avx2::kPanels};
  return kernels;
}

}  // namespace ladder::cpu
