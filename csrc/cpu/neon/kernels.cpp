// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels.h"

#include "cpu/neon/convert.h"
#include "cpu/neon/loops.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu {
namespace {

/// Of integers: whether all values fit 8 bits with a sign.
template <int kBits>
bool fits_8_bits(const Job& job) {
  return !job.integer_zeros && (kBits < 8 || job.tables->first < 0);
}

template <int kBits>
const neon::Loops& loops_of_codes(const Job& job) {
  using namespace neon;
  const Tables& tables = *job.tables;
  const bool groups = job.grouping == Grouping::blocks;
  if constexpr (kBits <= 4) {
    if (tables.linear && job.integer_zeros && groups) return loops_of<Integer16<kBits>>(job);
    if (tables.bfloat16_exact && !job.integer_zeros && !job.float_zeros)
      return loops_of<Halves<kBits>>(job);
    return loops_of<Folded<kBits>>(job);
  } else {
    if (tables.linear)
      return fits_8_bits<kBits>(job) ? loops_of<Integer8<kBits>>(job)
                                     : loops_of<Integer16<kBits>>(job);
    if constexpr (kBits == 8) {
      if (tables.bfloat16_exact && tables.mirrored) return loops_of<Mirrored>(job);
    } else {
      if (tables.bfloat16_exact) return loops_of<Halves<kBits>>(job);
    }
    return loops_of<Gathered<kBits>>(job);
  }
}

const neon::Loops& loops(const Job& job) {
  using namespace neon;
  switch (job.storage) {
    case Storage::float16: return loops_of<Plain<Storage::float16>>(job);
    case Storage::bfloat16: return loops_of<Plain<Storage::bfloat16>>(job);
    case Storage::float32: return loops_of<Plain<Storage::float32>>(job);
    case Storage::codes: break;
  }
  switch (job.bits) {
    case 1: return loops_of_codes<1>(job);
    case 2: return loops_of_codes<2>(job);
    case 3: return loops_of_codes<3>(job);
    case 4: return loops_of_codes<4>(job);
    case 5: return loops_of_codes<5>(job);
    case 6: return loops_of_codes<6>(job);
    case 7: return loops_of_codes<7>(job);
    default: return loops_of_codes<8>(job);
  }
}

std::int64_t position(const Job&, std::int64_t column) { return column; }

void arrange(const Job& job, const void* x, Scalar dtype, void* to) {
  auto* out = static_cast<float*>(to);
  neon::widen(x, dtype, job.k, out);
  for (std::int64_t i = job.k; i < job.padded_k; ++i) out[i] = 0;
}

void dot(const Job& job, const Rows& rows, const void* arranged, int tokens, float* out) {
  dot_some<float>(loops(job), job, rows, arranged, tokens, out);
}

void decode(const Job& job, const Rows& rows, void* out) {
  loops(job).decode(job, rows, static_cast<float*>(out));
}

}  // namespace

const Kernels& neon_kernels() {
  static constexpr Kernels kernels{.block = neon::kColumns,
                                   .column_size = 4,
                                   .decoded_size = 4,
                                   .few = 4,
                                   .most_dots = [](const Job&) -> std::int64_t { return 4; },
                                   .many = 192,
                                   .position = position,
                                   .arrange = arrange,
                                   .dot = dot,
                                   .decode = decode,
                                   .multiply = neon::multiply,
                                   .widen = neon::widen,
                                   .narrow = neon::narrow,
                                   .look_up = look_up_each,
                                   .gather = gather_each,
                                   .for_bfloat16 = nullptr};
  return kernels;
}

}  // namespace ladder::cpu
