// SPDX-License-Identifier: Apache-2.0
//
// The kernel that brings activations to 8 bits, on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "codegen/rounding_kernels.h"
#include "expr/problem.h"
#include "runtime/modules.h"

namespace ladder {

/// What users call an activation type: "" is x as it comes, "int8" s8, "float8_e4m3" e4m3,
/// "float8_e4m3,fast_accum" the same with fast sums.
/// Throws InvalidArgument listing them.
std::optional<RoundedX> rounded_called(std::string_view name);
/// The inverse.
std::string_view activation_type_of(std::optional<RoundedX> rounded);

/// What x of products of bytes is, and whose scales its tokens have.
enum class Incoming {
  numbers,         ///< rounded, with scales of their own
  scaled_numbers,  ///< rounded, with given scales
  codes,           ///< codes already, with given scales
};
constexpr std::size_t kIncoming = 3;

/// Where given scales are: f32, one for all tokens or one for each. Null, of codes alone: all 1.
struct GivenScales {
  void* scales;
  bool each;
};

struct RoundingKernel {
  SharedKernel kernel;
  RoundingPlan plan;
  std::int64_t k;
  bool waits;  ///< a dependent launch

  /// x [tokens, k] to `out` [tokens, k] and `scales` [tokens] (codegen/rounding_kernels.h). False,
  /// and nothing started, where the device has no room.
  [[nodiscard]] bool start(void* stream, void* x, void* out, void* scales, std::int64_t tokens,
                           GivenScales given = {}) const;
};

/// Compiled if need be. Of `to`, s8 or e4m3, it writes what the device's instruction reads. Throws
/// Unsupported where nothing is written for the device, ToolchainError
/// where compiler or driver fail.
RoundingKernel rounding_kernel(int ordinal, Scalar from, Scalar to, TokenScales whose,
                               std::int64_t k, InChain chain);

/// The same in no chain, for the life of the process; null where compiler or driver fail, which are
/// not asked again: a notice says why. Throws Unsupported where nothing is compiled yet and
/// `stream` is being captured.
const RoundingKernel* rounding_kernel_alone(int ordinal, Scalar from, Scalar to, TokenScales whose,
                                            std::int64_t k, void* stream);

}  // namespace ladder
