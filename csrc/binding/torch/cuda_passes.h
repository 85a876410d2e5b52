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
/// Throws InvalidArgument unless `residual` is as y, of `tokens` and `dtype`, on device `ordinal`.
void require_residual(const Tensor& residual, const Tokens& tokens, ScalarType dtype,
                      std::int32_t ordinal);
/// Scales that the caller gives: one for all of `m` tokens, or one for each. Throws InvalidArgument
/// unless they are float32, contiguous and on device `ordinal`.
GivenScales given_scales(const std::optional<Tensor>& scales, std::int64_t m, std::int32_t ordinal);
/// Throws InvalidArgument unless there is a scale of y where `dtype` has 8 bits, and nowhere else:
/// one number of float32 on device `ordinal`.
void require_out_scale(const std::optional<Tensor>& scale, ScalarType dtype, std::int32_t ordinal);

/// What all passes of a call have in common.
struct Call {
  Session& session;
  const Tensor& image;
  const std::optional<Tensor>& bias;
  const std::optional<Tensor>& residual;  ///< as y; there where the session has one
  const std::optional<Tensor>& y_scale;   ///< one float32; there where y is quantised
  Scalar activation;
  std::int32_t ordinal;
  void* stream;
};

/// y = x w of `dtype`, pass by pass, x brought to 8 bits before where the passes have it so.
/// Nothing where there are no passes, or the driver has refused every kernel of one. Logs what came
/// up when the kernels were looked for.
std::optional<Tensor> multiplied(const Session::Passes& passes, const Call& call, const Tensor& x,
                                 const Tokens& tokens, std::int32_t dtype, GivenScales given);

}  // namespace ladder::binding
