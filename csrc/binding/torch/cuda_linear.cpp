// SPDX-License-Identifier: Apache-2.0
// The linear layer on weight images.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "binding/torch/cuda.h"
#include "binding/torch/cuda_passes.h"

namespace ladder::binding {

void log_notices() {
  StableIValue none = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("ladder::log_notices", "", &none, stable::kAbiVersion));
}

Tensor readable(const Tensor& x) {
  Tensor rows = x.is_contiguous() ? x : stable::contiguous(x);
  return begins_at_multiple(rows, 16) ? rows : stable::clone(rows);
}

std::optional<Gating> gating_of(const std::string& gate, double limit, double alpha) {
  if (gate.empty()) return std::nullopt;
  const auto what = gated_called(gate);
  LADDER_REQUIRE(what.has_value(), "the gate is \"", gate, "\", no activation of gated layers");
  return Gating{*what, static_cast<float>(limit), static_cast<float>(alpha)};
}

namespace {

/// y [tokens, n] of gate and up in turn, as a kernel would have gated it, rounded twice.
Tensor gated_rows(const Tensor& y, const Gating& gating, std::span<const std::int64_t> shape) {
  using stable::from;
  const auto reshaped = [](const Tensor& tensor, std::vector<std::int64_t> to) {
    return stable::call("aten::reshape", "", std::array{from(tensor), from(std::move(to))});
  };
  const auto columns = y.size(y.dim() - 1);
  const Tensor rows = stable::contiguous(reshaped(y, {y.numel() / columns, columns}));
  const Tensor out =
      stable::call("ladder::gated", "",
                   std::array{from(rows), from(std::string(name_of(gating.what))),
                              from(double{gating.limit}), from(double{gating.alpha}), from(true)});
  return reshaped(out, {shape.begin(), shape.end()});
}

/// The activation function of y, which is rounded twice, by torch's own ops.
Tensor activated(const Tensor& y, Gated function) {
  using stable::from;
  return stable::call("ladder::activate", "",
                      std::array{from(y), from(std::string(name_of(function)))});
}

/// y, which is rounded, plus a residual, by torch's own op.
Tensor plus(const Tensor& y, const Tensor& residual) {
  using stable::from;
  return stable::call("ladder::plus", "", std::array{from(y), from(residual)});
}

void require_columns(const Session& session, std::int64_t n) {
  LADDER_REQUIRE(n == session.columns_of_y(), "n is ", n, ", not ", session.columns_of_y());
}

// By reference: a Tensor counts its owners, and this is on the path of every call.
Tensor run(Session& given, const Tensor& x, const Tensor& image, const std::optional<Tensor>& bias,
           const std::optional<Tensor>& x_scale,
           const std::optional<Tensor>& residual = std::nullopt) {
  using stable::from;
  const Tokens tokens(x, given.k(), given.columns_of_y());
  const std::int64_t m = tokens.count();
  Session& session = given.serving(m);
  require_image(image, session);
  const auto ordinal = image.get_device_index();
  LADDER_REQUIRE(x.is_cuda() && x.get_device_index() == ordinal,
                 "x is not on the device of the weight");
  const Activation as = activation_of(x.scalar_type());
  if (bias.has_value()) require_bias(*bias, x.scalar_type(), session.n(), ordinal);
  if (residual.has_value()) require_residual(*residual, tokens, x.scalar_type(), ordinal);
  const GivenScales scales = given_scales(x_scale, m, ordinal);
  LADDER_REQUIRE(scales.scales == nullptr || given.rounded(),
                 "x_scale is given, and the weight has no activation_type");
  if (m == 0) return empty(tokens.shape(), as.dtype, ordinal);

  void* const stream = current_stream(ordinal);
  // All kernels before the first pass: none must be missed halfway.
  const Incoming incoming =
      session.rounded() && scales.scales != nullptr ? Incoming::scaled_numbers : Incoming::numbers;
  const Session::Passes passes = session.passes(ordinal, as.scalar, m, stream, incoming);
  const std::optional<Tensor> no_scale;
  const Call call{session, image, bias, residual, no_scale, as.scalar, ordinal, stream};
  if (auto y = multiplied(passes, call, x, tokens, as.dtype, scales)) [[likely]]
    return *std::move(y);
  const Tensor values = dense(image, session, as);
  const auto densely = [&](const Tensor& rows) {
    Tensor y = stable::call("aten::linear", "", std::array{from(rows), from(values), from(bias)});
    if (session.function()) y = activated(y, *session.function());
    if (residual.has_value()) return plus(y, *residual);
    return session.gating() ? gated_rows(y, *session.gating(), tokens.shape()) : y;
  };
  if (!session.rounded()) return densely(x);
  // Of float32, or compiler or driver fail.
  return densely(
      stable::call("ladder::round_tokens", "",
                   std::array{from(x), from(std::string(activation_type_of(session.rounded()))),
                              from(x_scale)}));
}

Tensor linear(const Tensor& x, const Tensor& image, const std::optional<Tensor>& bias,
              std::int64_t weight, std::int64_t n) {
  Session& session = ladder::session(weight);
  require_columns(session, n);
  return run(session, x, image, bias, std::nullopt);
}

/// With the scale, or the scales of tokens, by which x is rounded.
Tensor linear_scaled(const Tensor& x, const Tensor& x_scale, const Tensor& image,
                     const std::optional<Tensor>& bias, std::int64_t weight, std::int64_t n) {
  Session& session = ladder::session(weight);
  require_columns(session, n);
  return run(session, x, image, bias, x_scale);
}

/// With a residual of the shape and dtype of y, added in float32 before y is rounded.
Tensor linear_residual(const Tensor& x, const Tensor& residual, const Tensor& image,
                       const std::optional<Tensor>& bias, std::int64_t weight, std::int64_t n,
                       const std::optional<Tensor>& x_scale) {
  Session& session = ladder::session(weight).with_residual();
  require_columns(session, n);
  return run(session, x, image, bias, x_scale, residual);
}

/// What the arguments of linear_prepacked say of a weight [n, k].
struct Named {
  std::string type, activation_type, gate;
  std::int64_t n, k;
  std::int64_t words;  ///< of its image: they tell whether it has an order of columns
  bool dependent_launch;
  double limit, alpha;
  bool operator==(const Named&) const = default;
};

Session& session_of(const Named& named) {
  // On the path of every call: a thread asks for the weights of one model again and again.
  struct Recent {
    Named named;
    Session* session = nullptr;
  };
  thread_local std::array<Recent, 32> recents{};
  const auto mixed = static_cast<std::uint64_t>(named.n) * 31 +
                     static_cast<std::uint64_t>(named.k) + static_cast<std::uint64_t>(named.words);
  Recent& recent = recents[(mixed * 0x9e3779b97f4a7c15U) >> 59];
  if (recent.session != nullptr && recent.named == named) return *recent.session;
  const auto rounded = rounded_called(named.activation_type);
  const auto gating = gating_of(named.gate, named.limit, named.alpha);
  for (const bool gather : {false, true}) {
    if (gather && rounded) continue;
    Session& session =
        ladder::session(open_session(ttype(named.type), named.n, named.k, gather,
                                     named.dependent_launch, rounded, false, gating));
    if (session.parts().words != named.words) continue;
    recent = {named, &session};
    return session;
  }
  fail<InvalidArgument>("image has ", named.words, " words, which no weight of ", named.type, " [",
                        named.n, ", ", named.k, "] has");
}

Tensor linear_prepacked(const Tensor& x, const Tensor& image, const std::optional<Tensor>& bias,
                        std::string type, std::int64_t n, bool dependent_launch,
                        std::string activation_type, const std::optional<Tensor>& x_scale,
                        std::string gate, double limit, double alpha) {
  const std::int64_t dimensions = x.dim();
  LADDER_REQUIRE(dimensions > 0, "x has no dimension; its last one must be in_features");
  // Both forms of a weight have as many words, in another order.
  const bool gated = !gate.empty();
  LADDER_REQUIRE(image.dim() == (gated ? 2 : 1), "image has ", image.dim(),
                 " dimensions: rows of gate and up ", gated ? "do not lie" : "lie",
                 " in turn; a compiled graph that was made for the other order must be made anew");
  Session& session =
      session_of({std::move(type), std::move(activation_type), std::move(gate), gated ? 2 * n : n,
                  x.size(dimensions - 1), image.numel(), dependent_launch, limit, alpha});
  return run(session, x, image, bias, x_scale);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("linear_image(Tensor x, Tensor image, Tensor? bias, int weight, int n) -> Tensor");
  m.def("linear_image_no_grad(Tensor x, Tensor image, Tensor? bias, int weight, int n) -> Tensor");
  m.def(
      "linear_prepacked(Tensor x, Tensor image, Tensor? bias, str type, int n, "
      "bool dependent_launch=False, str activation_type=\"\", Tensor? x_scale=None, "
      "str gate=\"\", float limit=0., float alpha=0.) -> Tensor");
  m.def(
      "linear_image_scaled(Tensor x, Tensor x_scale, Tensor image, Tensor? bias, int weight, "
      "int n) -> Tensor");
  m.def(
      "linear_residual(Tensor x, Tensor residual, Tensor image, Tensor? bias, int weight, int n, "
      "Tensor? x_scale=None) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("linear_image", TORCH_BOX(&linear));
  m.impl("linear_image_no_grad", TORCH_BOX(&linear));
  m.impl("linear_image_scaled", TORCH_BOX(&linear_scaled));
  m.impl("linear_residual", TORCH_BOX(&linear_residual));
  m.impl("linear_prepacked", TORCH_BOX(&linear_prepacked));
}

}  // namespace ladder::binding
