// SPDX-License-Identifier: Apache-2.0
#include "cpu/avx512/convert.h"
#include "cpu/avx512/loops.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu {
namespace {

const avx512::Loops& loops(const Job& job) {
  if (job.storage != Storage::codes) return avx512::plain_loops(job);
  return job.bits <= 4 ? avx512::narrow_loops(job) : avx512::wide_loops(job);
}

void dot(const Job& job, const Rows& rows, const void* arranged, int tokens, float* out) {
  dot_some<float>(loops(job), job, rows, arranged, tokens, out);
}

void decode(const Job& job, const Rows& rows, void* out) {
  avx512::decode(job, rows, {0, job.padded_k, job.stride}, static_cast<float*>(out));
}

/// Where a shift and a look-up give a weight ready to multiply, storing it takes as long.
std::int64_t most_dots(const Job& job) {
  return job.bits <= 4 && job.grouping == Grouping::blocks ? 16 : 4;
}

constexpr Kernels kKernels{.block = avx512::kBlock,
                           .column_size = 4,
                           .decoded_size = 4,
                           .few = 4,
                           .most_dots = most_dots,
                           .many = 1024,
                           .position = avx512::position,
                           .arrange = avx512::arrange,
                           .dot = dot,
                           .decode = decode,
                           .multiply = avx512::multiply,
                           .widen = avx512::widen,
                           .narrow = avx512::narrow,
                           .look_up = avx512::look_up,
                           .gather = avx512::gather,
                           .for_bfloat16 = nullptr};

}  // namespace

void avx512::decode(const Job& job, const Rows& rows, const Piece& piece, float* out) {
  loops(job).decode(job, rows, piece, out);
}

const Kernels& avx512_kernels() { return kKernels; }

}  // namespace ladder::cpu
