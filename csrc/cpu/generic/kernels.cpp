// SPDX-License-Identifier: Apache-2.0
//
// Plain C++ for any machine, in the natural order of columns. Loops over arrays of fixed size are
// what compilers turn into whatever vectors the machine has.
#include "cpu/kernels.h"

#include <algorithm>
#include <cstring>

#include "cpu/floats.h"
#include "cpu/shared_loops.h"

namespace ladder::cpu {
namespace {

constexpr int kLanes = 8;             // partial sums per product
constexpr std::int64_t kPiece = 256;  // columns decoded at once: 1 KiB, a multiple of 32

float widen_one(const std::uint8_t* from, std::int64_t index, Scalar dtype) {
  if (dtype == Scalar::f32) {
    float value;
    std::memcpy(&value, from + index * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, from + index * 2, 2);
  return dtype == Scalar::f16 ? from_float16(bits) : from_bfloat16(bits);
}

void widen(const void* from, Scalar dtype, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = widen_one(static_cast<const std::uint8_t*>(from), i, dtype);
}

void narrow(const float* from, std::int64_t count, Scalar dtype, void* to) {
  if (dtype == Scalar::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = dtype == Scalar::f16 ? to_float16(from[i]) : to_bfloat16(from[i]);
    std::memcpy(static_cast<std::uint8_t*>(to) + i * 2, &bits, 2);
  }
}

std::int64_t position(const Job&, std::int64_t column) { return column; }

void arrange(const Job& job, const void* x, Scalar dtype, void* out) {
  widen(x, dtype, job.k, static_cast<float*>(out));
}

/// decode(code) of columns [begin, begin + count) of a row; begin is a multiple of 32.
void decode_codes(const Job& job, const std::uint8_t* row, std::int64_t begin, std::int64_t count,
                  float* out) {
  if (job.storage != Storage::codes) {
    const Scalar dtype = job.storage == Storage::float32   ? Scalar::f32
                         : job.storage == Storage::float16 ? Scalar::f16
                                                           : Scalar::bf16;
    widen(row + begin * job.bits / 8, dtype, count, out);
    return;
  }
  const std::uint8_t* from = row + begin * job.bits / 8;
  std::uint64_t window = 0;
  int held = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (held < job.bits) {
      std::uint32_t word;
      std::memcpy(&word, from, 4);
      from += 4;
      window |= static_cast<std::uint64_t>(word) << held;
      held += 32;
    }
    out[i] = job.tables->values[window & 0xff];
    window >>= job.bits;
    held -= job.bits;
  }
}

/// Values of the columns [begin, begin + count) of a row.
void decode_values(const Job& job, const std::uint8_t* codes, const RowScales& scales,
                   std::int64_t begin, std::int64_t count, float* out) {
  decode_codes(job, codes, begin, count, out);
  // In double the product is exact, so that an offset that nearly cancels it costs no accuracy.
  const auto apply = [&](std::int64_t i, std::int64_t group) {
    const double scaled = static_cast<double>(out[i] - scales.zero[group]) * scales.scale[group];
    out[i] = static_cast<float>(scaled - scales.offset[group]);
  };
  if (job.grouping == Grouping::columns) {
    for (std::int64_t i = 0; i < count; ++i) apply(i, begin + i);
    return;
  }
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t group = (begin + i) / job.group_columns;
    const std::int64_t end = std::min(count, (group + 1) * job.group_columns - begin);
    for (; i < end; ++i) apply(i, group);
  }
}

struct Sum {
  float lanes[kLanes] = {};

  void add(const float* x, const float* w, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * w[i + lane];
    for (; i < count; ++i) lanes[i % kLanes] += x[i] * w[i];
  }
  float total() const {
    float sum = 0;
    for (const float lane : lanes) sum += lane;
    return sum;
  }
};

constexpr int kFew = 4;

void dot(const Job& job, const Rows& rows, const void* arranged, int tokens, float* out) {
  const auto* x = static_cast<const float*>(arranged);
  float piece[kPiece];
  for (int r = 0; r < kRows; ++r) {
    Sum sums[kFew];
    for (std::int64_t begin = 0; begin < job.k; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, job.k - begin);
      decode_values(job, rows.codes[r], rows.scales[r], begin, count, piece);
      for (int t = 0; t < tokens; ++t) sums[t].add(x + t * job.stride + begin, piece, count);
    }
    for (int t = 0; t < tokens; ++t) out[t * kRows + r] = sums[t].total();
  }
}

void decode(const Job& job, const Rows& rows, void* out) {
  for (int r = 0; r < kRows; ++r)
    for (std::int64_t begin = 0; begin < job.k; begin += kPiece)
      decode_values(job, rows.codes[r], rows.scales[r], begin, std::min(kPiece, job.k - begin),
                    static_cast<float*>(out) + r * job.stride + begin);
}

void multiply(const Job& job, const Rows*, int count, const void* tiles, const void* x,
              std::int64_t tokens, float* y, std::int64_t y_stride) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t r = 0; r < count * kRows; ++r) {
      Sum sum;
      sum.add(static_cast<const float*>(x) + t * job.stride,
              static_cast<const float*>(tiles) + r * job.stride, job.padded_k);
      y[t * y_stride + r] = sum.total();
    }
}

}  // namespace

const Kernels& generic_kernels() {
  static constexpr Kernels kernels{.block = 1,
                                   .column_size = 4,
                                   .decoded_size = 4,
                                   .few = kFew,
                                   .most_dots = [](const Job&) -> std::int64_t { return kFew; },
                                   .many = 192,
                                   .position = position,
                                   .arrange = arrange,
                                   .dot = dot,
                                   .decode = decode,
                                   .multiply = multiply,
                                   .widen = widen,
                                   .narrow = narrow,
                                   .look_up = look_up_each,
                                   .gather = gather_each,
                                   .for_bfloat16 = nullptr};
  return kernels;
}

}  // namespace ladder::cpu
