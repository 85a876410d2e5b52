// SPDX-License-Identifier: Apache-2.0
//
// From a WeightView to what kernels read: value tables, float32 scales and zeros, row pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "cpu/kernels.h"
#include "types/weight.h"

namespace ladder::cpu {

/// Uninitialised floats on a cache line boundary.
class Buffer {
 public:
  explicit Buffer(std::int64_t count)
      : data_(static_cast<float*>(
            ::operator new(static_cast<std::size_t>(count) * sizeof(float), kAlign))) {}
  float* data() { return data_.get(); }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(data_.get()); }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Delete {
    void operator()(float* p) const { ::operator delete(p, kAlign); }
  };
  std::unique_ptr<float, Delete> data_;
};

/// A weight seen by one set of kernels.
struct Weight {
  const WeightView* view;
  const Kernels* kernels;
  Job job;
  std::int64_t groups;
  std::vector<std::int32_t> group_of;  ///< Grouping::columns: group by position; else empty
  Scalar scale_dtype;                  ///< when scales have 16 or 32 bits
  const Tables* scale_tables;          ///< when scales have 8 bits or fewer, else null
  Scalar second_dtype;                 ///< of the second scales of superblocks
};

Weight read_weight(const WeightView& view, const Kernels& kernels);

/// Rows that share one preparation of their scales: enough that its cost per row is small, few
/// enough that all of it stays in the first-level cache.
inline constexpr std::int64_t kChunk = 16;

/// Scales, zeros and offsets of up to kChunk rows as float32. One per thread.
class Scales {
 public:
  explicit Scales(const Weight& weight);
  /// Reads those of rows [begin, begin + count), count <= kChunk.
  void read(std::int64_t begin, std::int64_t count);
  /// kRows rows from `row` on, below begin + count; rows past that repeat the last.
  Rows rows(std::int64_t row) const;

 private:
  enum Part { kScale, kZero, kOffset, kParts };
  float* part(Part p) { return buffer_.data() + p * kChunk * stride_; }
  void read_floats(const void* data, std::int64_t block_row, std::int64_t count, float* to);
  /// The same of superblocks: integers times the second scales of scales, or those of zeros.
  void read_superblocks(const void* stored, bool of_zeros, std::int64_t row, std::int64_t count,
                        float* to);
  void read_zeros(std::int64_t block_row, std::int64_t count, float* to);

  const Weight& weight_;
  std::int64_t stride_;  ///< floats per row in the buffer
  Buffer buffer_;        ///< [kParts][kChunk][stride], and room to read past the end
  Buffer packed_;        ///< [kChunk][groups]: before spreading over columns
  std::int64_t begin_ = 0, end_ = 0;
};

}  // namespace ladder::cpu
