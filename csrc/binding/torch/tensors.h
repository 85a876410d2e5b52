// SPDX-License-Identifier: Apache-2.0
// What the torch ops share: tensors to ladder's views, torch's threads, torch's matrix product.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/parallel.h"
#include "binding/torch/stable.h"
#include "cpu/linear.h"
#include "types/scalar.h"
#include "types/weight.h"

namespace ladder::binding {

using stable::ScalarType;
using stable::Tensor;

/// Runs on torch's pool; what a thread throws is thrown again here, with its type.
void torch_parallel(std::int64_t count, std::int64_t grain, const RangeBody& body);

/// "float32", as Python prints it.
std::string_view name(ScalarType dtype);
/// What a dtype is in kernels; nothing for those that no kernel has.
std::optional<Scalar> scalar_of(ScalarType dtype);
/// The inverse, of scalars that have a dtype.
ScalarType dtype_of(Scalar scalar);

/// "[2, 3]".
std::string shape(std::span<const std::int64_t> extents);
std::string shape(const Tensor& tensor);

/// Throws InvalidArgument unless `tensor` has this dtype and number of dimensions, is on the CPU
/// and contiguous.
void require(const Tensor& tensor, std::string_view argument, ScalarType dtype, int dimensions);

/// Throws InvalidArgument unless `residual` has the shape and the dtype of y; both are named.
void require_like_y(const Tensor& residual, std::span<const std::int64_t> y, ScalarType dtype);

/// The torch dtype in which scales of `format` are stored: float16, bfloat16, float32, or uint8
/// codes for narrower formats.
ScalarType storage_dtype(const Element& format);

/// The parts of a packed weight as ops receive them.
struct WeightArguments {
  const Tensor& qweight;
  const std::optional<Tensor>& scales;
  const std::optional<Tensor>& zeros;
  const std::optional<Tensor>& scale2;
  const std::optional<Tensor>& g_idx;
};

/// A view of the arguments as an [n, k] weight of `type`. Throws InvalidArgument that names the
/// part whose presence, dtype or shape does not fit, and both values. Values of g_idx are not
/// looked at: see check_g_idx.
WeightView view_weight(const WeightArguments& arguments, const TType& type, std::int64_t k);

/// Throws InvalidArgument unless every group index is in [0, groups).
void check_g_idx(const WeightView& weight);

/// The instruction set that CPU ops use (the op use_cpu_isa).
cpu::Isa cpu_isa();

/// The cudaStream_t or hipStream_t that torch uses now. Torch is not linked: this library also
/// serves CPU builds. Throws Unsupported where torch has no GPUs.
void* current_stream(std::int32_t ordinal);

/// The float dtypes of activations. Throws InvalidArgument for others.
Scalar float_kind(ScalarType dtype, std::string_view argument);

}  // namespace ladder::binding
