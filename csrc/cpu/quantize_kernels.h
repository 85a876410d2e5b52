// SPDX-License-Identifier: Apache-2.0
//
// What quantising takes of an instruction set: runs over the weights of a block. The driver
// (quantize.cpp) chooses scales. All agree to the bit (types/scale_search.h). Plain data only, as
// in kernels.h.
#pragma once

#include <cstdint>

namespace ladder::cpu {

/// The values of an element, in the shapes in which the nearest of them is found.
struct alignas(64) Values {
  enum class Kind {
    integer,   ///< clamp and round
    floating,  ///< round bits of float32 (types/encoder.h)
    few,       ///< at most 16 values: compare with every border
    many,      ///< at most 256: compare with 16 of 16 borders, then with those 16
  };
  Kind kind;
  float low, high;  ///< least and greatest value
  // integer
  std::int32_t code_mask;
  // floating: FloatRounding, the least code of value 0, and the sign's place
  float smallest_normal, subnormal;
  std::int32_t shift, sign_shift;
  std::uint32_t half, mask, flip, rebias, zero_code;
  // few, many: borders[i] is the greatest number that is nearer to the value of rank i than to the
  // next; those behind the last are infinite.
  std::int32_t count;  ///< borders
  alignas(64) float borders[256];
  alignas(64) float row_begins[16];  ///< borders[16 * i]
  float by_rank[256];
  std::uint32_t steps[16];  ///< bits of by_rank[i + 1] less those of by_rank[i]
  std::uint8_t codes[256];  ///< by rank
};

/// A weight w is compared with w / divisor + zero; a value v stands for (v - zero) * scale * unit.
struct Scaling {
  float divisor, zero, scale, unit;
};

struct QuantizeKernels {
  /// Least and greatest of `count` numbers.
  void (*range)(const float* weights, std::int64_t count, float* least, float* greatest);
  /// The greatest magnitude of `count` numbers, as bits: 0x7f800000 and more where one is not
  /// finite.
  std::uint32_t (*largest)(const float* weights, std::int64_t count);
  /// The sum of squared errors of a block, or infinity once it cannot be below `limit`.
  double (*error)(const Values& values, const float* weights, std::int64_t count,
                  const Scaling& scaling, double limit);
  /// The code of each weight.
  void (*encode)(const Values& values, const float* weights, std::int64_t count,
                 const Scaling& scaling, std::uint8_t* codes);
};

const QuantizeKernels& generic_quantize_kernels();
#if defined(LADDER_X86)
const QuantizeKernels& avx2_quantize_kernels();
const QuantizeKernels& avx512_quantize_kernels();
#endif

}  // namespace ladder::cpu
