// SPDX-License-Identifier: Apache-2.0
// What the ops on weight images share.
#pragma once

#include <array>
#include <span>

#include "binding/torch/tensors.h"
#include "runtime/session.h"

namespace ladder::binding {

using Transform = Session::Transform;

constexpr std::size_t kMaxDimensions = 16;

/// An uninitialised tensor of at most kMaxDimensions, without the dispatcher: this is on the path
/// of every call. `dtype` is torch's number of it.
Tensor empty(std::span<const std::int64_t> shape, std::int32_t dtype, std::int32_t ordinal);
template <class... Extents>
Tensor empty_of(std::int32_t dtype, std::int32_t ordinal, Extents... extents) {
  const std::array<std::int64_t, sizeof...(extents)> shape{extents...};
  return empty(shape, dtype, ordinal);
}

struct Activation {
  Scalar scalar;
  std::int32_t dtype;  ///< torch's number of it
  Transform dense;
};
/// Throws InvalidArgument for dtypes that activations never have.
Activation activation_of(ScalarType dtype);

inline void* address(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

/// Where a part of the image is; null for one that the weight has not.
inline void* part_of(void* image, const std::optional<ImageParts::Part>& part) {
  return part ? static_cast<char*>(image) + part->offset_bytes : nullptr;
}

inline bool begins_at_multiple(const Tensor& tensor, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % bytes == 0;
}
/// `x` as kernels can read it: they copy rows of activations in pieces of 16 bytes.
Tensor readable(const Tensor& x);

/// To Python's log (ladder/_library.py), from whatever thread.
void log_notices();

/// Blocks along the second and third dimension of a grid, at most.
constexpr std::int64_t kMostOfGrid = 65535;
/// What kernels of experts take. Throws InvalidArgument naming the argument.
Scalar half_of(const Tensor& x, const char* argument);
void require_matrix(const Tensor& x, const char* argument);
/// Rows as ladder::rounded_codes has them.
void require_rounded_rows(const Tensor& codes, const Tensor& scales);

/// Where the operands of a kernel are; null for those that it has not.
class Pointers {
 public:
  /// Those that an image has, or the first of several.
  Pointers(const Tensor& images, const ImageParts& parts) {
    void* const first = address(images);
    (*this)[Operand::weight] = first;
    (*this)[Operand::scales] = part_of(first, parts.scales);
    (*this)[Operand::zeros] = part_of(first, parts.zeros);
    (*this)[Operand::scale2] = part_of(first, parts.scale2);
    (*this)[Operand::gather] = part_of(first, parts.gather);
  }
  void*& operator[](Operand operand) { return all_[static_cast<std::size_t>(operand)]; }
  /// The arguments of a kernel, in its order, `tokens` last.
  std::array<void*, kOperands + 1> arguments(const LinearKernel& kernel, std::uint32_t& tokens) {
    std::array<void*, kOperands + 1> out;
    std::size_t count = 0;
    for (const Operand operand : kernel.operands) out[count++] = &(*this)[operand];
    out[count] = &tokens;
    return out;
  }

 private:
  std::array<void*, kOperands> all_{};
};

/// Throws ToolchainError: the driver has no room for a kernel that every device has.
[[noreturn]] void refused(const std::string& kernel);

/// Starts one of the kernels between canonical, image and dense: pointers, then numbers.
template <std::size_t Pointers, std::size_t Numbers>
void transform(Session& session, std::int32_t ordinal, Transform which,
               std::array<void*, Pointers> pointers, std::array<std::uint32_t, Numbers> numbers) {
  void* const stream = current_stream(ordinal);
  const LinearKernel& kernel = session.transform(ordinal, which, stream);
  std::array<void*, Pointers + Numbers> arguments;
  for (std::size_t i = 0; i < Pointers; ++i) arguments[i] = &pointers[i];
  for (std::size_t i = 0; i < Numbers; ++i) arguments[Pointers + i] = &numbers[i];
  if (!kernel.start(stream, arguments.data())) refused(kernel.schedule);
}

/// What an op's words say of the product of gate and up; nothing where `gate` is "". Throws
/// InvalidArgument for a name that no gated layer has.
std::optional<Gating> gating_of(const std::string& gate, double limit, double alpha);

/// Throws InvalidArgument unless `image` can be that of a weight of `session`, by its dtype, size,
/// strides and device.
void require_image(const Tensor& image, const Session& session);

/// The values [n, k] of an image.
Tensor dense(const Tensor& image, Session& session, const Activation& as);

}  // namespace ladder::binding
