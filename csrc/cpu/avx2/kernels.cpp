// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"

#include "cpu/avx2/convert.h"
#include "cpu/avx2/loops.h"

namespace ladder::cpu {
namespace {

const avx2::Loops& loops(const Job& job) {
  using namespace avx2;
  switch (job.storage) {
    case Storage::float16: return loops_of<Plain<Storage::float16>>(job);
    case Storage::bfloat16: return loops_of<Plain<Storage::bfloat16>>(job);
    case Storage::float32: return loops_of<Plain<Storage::float32>>(job);
    case Storage::codes: break;
  }
  const bool linear = job.tables->linear;
  switch (job.bits) {
    case 1: return loops_of<Narrow<1>>(job);
    case 2: return loops_of<Narrow<2>>(job);
    case 3: return loops_of<Narrow<3>>(job);
    case 4: return loops_of<Narrow<4>>(job);
    case 5: return linear ? loops_of<Integer<5>>(job) : loops_of<Five>(job);
    case 6: return linear ? loops_of<Integer<6>>(job) : loops_of<Wide<6>>(job);
    case 7: return linear ? loops_of<Integer<7>>(job) : loops_of<Wide<7>>(job);
    default: return linear ? loops_of<Integer<8>>(job) : loops_of<Wide<8>>(job);
  }
}

std::int64_t position(const Job&, std::int64_t column) { return column; }

void arrange(const Job& job, const void* x, Float dtype, void* to) {
  auto* out = static_cast<float*>(to);
  avx2::widen(x, dtype, job.k, out);
  for (std::int64_t i = job.k; i < job.padded_k; ++i) out[i] = 0;
}

void dot(const Job& job, const Rows& rows, const void* arranged, int tokens, float* out) {
  const auto* x = static_cast<const float*>(arranged);
  const avx2::Loops& l = loops(job);
  if (tokens == 4) return l.dot[2](job, rows, x, out);
  if (tokens >= 2) l.dot[1](job, rows, x, out);
  if (tokens != 2) l.dot[0](job, rows, x + (tokens - 1) * job.stride, out + (tokens - 1) * kRows);
}

void decode(const Job& job, const Rows& rows, void* out) {
  loops(job).decode(job, rows, static_cast<float*>(out));
}

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels{.block = avx2::kLanes,
                                   .column_size = 4,
                                   .few = 4,
                                   .most_dots = [](const Job&) -> std::int64_t { return 4; },
                                   .position = position,
                                   .arrange = arrange,
                                   .dot = dot,
                                   .decode = decode,
                                   .multiply = avx2::multiply,
                                   .widen = avx2::widen,
                                   .narrow = avx2::narrow,
                                   .look_up = avx2::look_up,
                                   .gather = avx2::gather,
                                   .bfloat16 = nullptr,
                                   .fits = nullptr};
  return kernels;
}

}  // namespace ladder::cpu
