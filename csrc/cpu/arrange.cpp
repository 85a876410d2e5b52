// SPDX-License-Identifier: Apache-2.0
#include "cpu/arrange.h"

#include <algorithm>

#include "base/integers.h"

namespace ladder::cpu {
namespace {

/// A thread should arrange so many at least.
std::int64_t least_rows(const Job& job) {
  return std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(job.padded_k, 1));
}

const std::uint8_t* row_of(const Matrix& x, std::int64_t row) {
  return static_cast<const std::uint8_t*>(x.data) + row * x.stride * size_of(x.dtype);
}

}  // namespace

Buffer arrange(const Weight& weight, const Matrix& x, const Parallel& parallel) {
  const Kernels& kernels = *weight.kernels;
  const std::int64_t row_bytes = weight.job.stride * kernels.column_size;
  Buffer arranged(round_up(x.rows, kTogether) * row_bytes / 4);
  if (kernels.arrange_tile != nullptr) {
    parallel(ceil_div(x.rows, kTogether), ceil_div(least_rows(weight.job), kTogether),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin * kTogether; row < std::min(end * kTogether, x.rows);
                    row += kTogether)
                 kernels.arrange_tile(weight.job, row_of(x, row), x.stride,
                                      static_cast<int>(std::min(kTogether, x.rows - row)),
                                      arranged.bytes() + row * row_bytes);
             });
    return arranged;
  }
  parallel(x.rows, least_rows(weight.job), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row)
      kernels.arrange(weight.job, row_of(x, row), x.dtype, arranged.bytes() + row * row_bytes);
  });
  return arranged;
}

Buffer arrange(const Weight& weight, const Panels& panels, const Matrix& x, std::int64_t most,
               const Parallel& parallel) {
  const Job& job = weight.job;
  const std::int64_t lanes = panels.lanes, vectors = ceil_div(x.rows, lanes);
  Buffer arranged(vectors * lanes * job.padded_k);
  parallel(vectors, ceil_div(least_rows(job), lanes), [&](std::int64_t begin, std::int64_t end) {
    Buffer rows(lanes * job.stride);
    for (std::int64_t token = begin * lanes; token < end * lanes; token += lanes) {
      for (std::int64_t i = 0; i < lanes; ++i) {
        float* out = rows.data() + i * job.stride;
        if (token + i < x.rows)
          weight.kernels->arrange(job, row_of(x, token + i), x.dtype, out);
        else
          std::fill_n(out, job.padded_k, 0.0f);
      }
      const std::int64_t pass = token / most * most;
      panels.pack(job, rows.data(), token - pass, std::min(most, x.rows - pass),
                  arranged.data() + pass * job.padded_k);
    }
  });
  return arranged;
}

}  // namespace ladder::cpu
