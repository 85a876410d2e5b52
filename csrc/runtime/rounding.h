// SPDX-License-Identifier: Apache-2.0
//
// The kernel that rounds activations to 8 bits, on a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "codegen/rounding_kernels.h"
#include "runtime/modules.h"

namespace ladder {

/// What users call an activation type: "" is x as it comes, "int8" s8, "float8_e4m3" e4m3.
/// Throws InvalidArgument listing them.
std::optional<Scalar> rounded_called(std::string_view name);
/// The inverse.
std::string_view activation_type_of(std::optional<Scalar> rounded);

struct RoundingKernel {
  SharedKernel kernel;
  RoundingPlan plan;
  std::int64_t k;
  bool waits;  ///< a dependent launch

  /// x [tokens, k] to `out` [tokens, k] and `scales` [tokens] (codegen/rounding_kernels.h). False,
  /// and nothing started, where the device has no room.
  [[nodiscard]] bool start(void* stream, void* x, void* out, void* scales,
                           std::int64_t tokens) const;
};

/// Compiled if need be. Throws Unsupported where nothing is written for the device, ToolchainError
/// where compiler or driver fail.
RoundingKernel rounding_kernel(int ordinal, Scalar from, Scalar to, std::int64_t k, InChain chain);

}  // namespace ladder
