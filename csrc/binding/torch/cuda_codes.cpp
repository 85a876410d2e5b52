// SPDX-License-Identifier: Apache-2.0
// The linear layer on weight images of activations that are codes of 8 bits already.
//
// Kernels of bytes multiply any number of tokens of them, from one on. Those of 16 bits would take
// codes too, which float16 and bfloat16 hold, but y without its scales need not fit float16, and y
// of either would be rounded twice.
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "binding/torch/cuda.h"
#include "binding/torch/cuda_passes.h"

namespace ladder::binding {
namespace {

Tensor linear_codes(const Tensor& x, const std::optional<Tensor>& x_scale, const Tensor& image,
                    const std::optional<Tensor>& bias, std::int64_t weight, std::int64_t n,
                    ScalarType dtype, const std::optional<Tensor>& out_scale) {
  using stable::from;
  Session& rounded = ladder::session(weight);
  LADDER_REQUIRE(n == rounded.n(), "n is ", n, ", not ", rounded.n());
  LADDER_REQUIRE(!rounded.gating(), "codes of x by a weight of gate and up in turn");
  LADDER_REQUIRE(!rounded.function(), "codes of x by a weight that an activation function follows");
  LADDER_REQUIRE(rounded.rounded(), "the weight was opened without an activation_type");
  const ScalarType of_codes = dtype_of(rounded.rounded()->scalar);
  LADDER_REQUIRE(x.scalar_type() == of_codes, "x has dtype ", name(x.scalar_type()), ", not ",
                 name(of_codes), " as the activation_type of the weight says");
  const auto ordinal = image.get_device_index();
  require_out_scale(out_scale, dtype, ordinal);
  // Beside codes of y a bias has a dtype of its own.
  const bool quantised = out_scale.has_value();
  const ScalarType of_bias = !quantised         ? dtype
                             : bias.has_value() ? bias->scalar_type()
                                                : ScalarType::Half;
  const Activation as = activation_of(of_bias);
  const bool wide = as.scalar == Scalar::f32;
  const Tokens tokens(x, rounded.k(), n);
  const std::int64_t m = tokens.count();
  require_image(image, rounded);
  LADDER_REQUIRE(x.is_cuda() && x.get_device_index() == ordinal,
                 "x is not on the device of the weight");
  if (bias.has_value()) require_bias(*bias, of_bias, n, ordinal);
  const GivenScales scales = given_scales(x_scale, m, ordinal);
  const std::int32_t of_y = stable::number_of(dtype);
  if (m == 0) return empty(tokens.shape(), of_y, ordinal);

  Session& of_rows = wide ? rounded.wide() : rounded;
  Session& session = quantised ? of_rows.quantised(*scalar_of(dtype)) : of_rows;
  void* const stream = current_stream(ordinal);
  // Sums are float32 whatever the operands are: what has no y of 16 bits counts as of float16.
  const Scalar activation = wide ? Scalar::f16 : as.scalar;
  const auto passes = session.passes(ordinal, activation, m, stream, Incoming::codes);
  const std::optional<Tensor> no_residual;
  const Call call{session, image, bias, no_residual, out_scale, activation, ordinal, stream};
  if (auto y = multiplied(passes, call, x, tokens, of_y, scales)) [[likely]]
    return *std::move(y);
  // Compiler or driver fail, or every kernel is rejected.
  const Tensor values = dense(image, session, activation_of(ScalarType::Float));
  return stable::call(
      "ladder::multiply_codes", "",
      std::array{from(x), from(x_scale), from(values), from(bias), from(dtype), from(out_scale)});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def(
      "linear_codes(Tensor x, Tensor? x_scale, Tensor image, Tensor? bias, int weight, int n, "
      "ScalarType dtype, Tensor? out_scale=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) { m.impl("linear_codes", TORCH_BOX(&linear_codes)); }

}  // namespace ladder::binding
