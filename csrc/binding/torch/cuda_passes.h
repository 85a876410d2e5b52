// SPDX-License-Identifier: Apache-2.0
// The passes over the tokens of a call of a linear layer on an image.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "binding/torch/cuda.h"
#include "runtime/session.h"

namespace ladder::binding {

/// The tokens of x [..., k], and the shape of y [..., n].
class Tokens {
 public:
  /// Throws InvalidArgument where x has no dimension, too many, or other columns.
  Tokens(const Tensor& x, std::int64_t k, std::int64_t n);

  std::int64_t count() const { return count_; }
  std::span<const std::int64_t> shape() const { return {extents_.data(), dimensions_}; }

 private:
  std::array<std::int64_t, kMaxDimensions> extents_;
  std::size_t dimensions_;
  std::int64_t count_ = 1;
};

/// Throws InvalidArgument unless `bias` is [n] of `dtype`, contiguous on device `ordinal`.
void require_bias(const Tensor& bias, ScalarType dtype, std::int64_t n, std::int32_t ordinal);
/// A copy of a bias that begins where kernels cannot read it; nothing of others.
std::optional<Tensor> moved_bias(const std::optional<Tensor>& bias);
/// Scales that the caller gives: one for all of `m` tokens, or one for each. Throws InvalidArgument
/// unless they are float32, contiguous and on device `ordinal`.
GivenScales given_scales(const std::optional<Tensor>& scales, std::int64_t m, std::int32_t ordinal);

/// What all passes of a call have in common.
struct Call {
  Session& session;
  const Tensor& image;
  const std::optional<Tensor>& bias;
  Scalar activation;
  std::int32_t ordinal;
  void* stream;
};

/// y = x w of `m` tokens, pass by pass, x brought to 8 bits before where the passes have it so.
/// False when the driver has refused every kernel of a pass: `y` is then not whole.
[[nodiscard]] bool multiply(const Session::Passes& passes, const Call& call, const Tensor& x,
                            const Tensor& y, std::int64_t m, GivenScales given = {});

}  // namespace ladder::binding
