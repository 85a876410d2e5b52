// SPDX-License-Identifier: Apache-2.0
// The linear layer on weight images.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "binding/torch/cuda.h"
#include "runtime/counters.h"
#include "runtime/notices.h"

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

namespace {

void require_bias(const Tensor& bias, const Tensor& x, std::int64_t n) {
  LADDER_REQUIRE(bias.scalar_type() == x.scalar_type() && bias.numel() == n &&
                     bias.is_contiguous() && bias.is_cuda() &&
                     bias.get_device_index() == x.get_device_index(),
                 "bias is ", bias.numel(), " numbers of ", name(bias.scalar_type()), ", not ", n,
                 " contiguous ones of ", name(x.scalar_type()), " on the device of x");
}

/// What all passes of a call have in common.
struct Call {
  Session& session;
  const Tensor& image;
  const std::optional<Tensor>& bias;
  Scalar activation;
  std::int32_t ordinal;
  void* stream;
};

/// Where activations, their scales where they are rounded, and results of a pass begin.
struct Place {
  char *x, *x_scales, *y;
};

/// Of `m` tokens; as LinearKernel::start.
[[nodiscard]] bool launch(const LinearKernel& kernel, const Call& call, const Place& at,
                          std::int64_t m) {
  const auto& [session, image, bias, activation, ordinal, stream] = call;
  Pointers pointers(image, session.parts());
  pointers[Operand::bias] = bias.has_value() ? address(*bias) : nullptr;
  pointers[Operand::x] = at.x;
  pointers[Operand::x_scales] = at.x_scales;
  pointers[Operand::y] = at.y;
  std::optional<Tensor> workspace;
  if (kernel.workspace.floats > 0) {
    workspace = empty_of(aoti_torch_dtype_float32(), ordinal, kernel.workspace.floats);
    pointers[Operand::workspace] = address(*workspace);
  }
  if (kernel.workspace.counters > 0) {
    pointers[Operand::counters] = take_counters(ordinal, kernel.workspace.counters, stream);
  }
  auto tokens = static_cast<std::uint32_t>(m);
  return kernel.start(stream, pointers.arguments(kernel, tokens).data());
}

/// The same with the kernel that the session has for `m` tokens, or another where the driver
/// refuses that. False, and nothing started, when there is none.
[[nodiscard]] bool pass(const LinearKernel* kernel, const Call& call, const Place& at,
                        std::int64_t m) {
  while (kernel != nullptr && !launch(*kernel, call, at, m)) {
    kernel = call.session.instead_of(*kernel, call.ordinal, call.activation, m, call.stream);
  }
  return kernel != nullptr;
}

/// Of a bias they read two numbers at once; part of a longer tensor may begin between two words.
constexpr std::uintptr_t kBiasPiece = 4;

constexpr std::int64_t kBytes = sizeof(std::uint16_t);  // of what comes and goes

/// y = x w, pass by pass. False when the driver has refused every kernel of one: `y` is then not
/// whole.
[[nodiscard]] bool multiply(const Session::Passes& passes, const Call& call, const Place& first,
                            std::int64_t m) {
  const std::int64_t of_x = call.session.k() * (passes.rounding == nullptr ? kBytes : 1),
                     of_y = call.session.n() * kBytes;
  const auto of_scale = static_cast<std::int64_t>(sizeof(float));
  for (std::int64_t at = 0; at < m; at += passes.step) {
    const std::int64_t tokens = std::min(passes.step, m - at);
    const Place place{first.x + at * of_x,
                      first.x_scales == nullptr ? nullptr : first.x_scales + at * of_scale,
                      first.y + at * of_y};
    if (!pass(tokens == passes.step ? passes.most : passes.last, call, place, tokens)) return false;
  }
  return true;
}

/// The same with x rounded before it, where the session has it so.
[[nodiscard]] bool multiply(const Session::Passes& passes, const Call& call, const Tensor& x,
                            const Tensor& y, std::int64_t m) {
  Place first{static_cast<char*>(address(x)), nullptr, static_cast<char*>(address(y))};
  if (passes.rounding == nullptr) return multiply(passes, call, first, m);
  // Codes, and the scales behind them: codes are whole pieces of 16 bytes.
  const std::int64_t codes = m * call.session.k();
  const Tensor rounded = empty_of(aoti_torch_dtype_uint8(), call.ordinal,
                                  codes + m * static_cast<std::int64_t>(sizeof(float)));
  first.x = static_cast<char*>(address(rounded));
  first.x_scales = first.x + codes;
  return passes.rounding->start(call.stream, address(x), first.x, first.x_scales, m) &&
         multiply(passes, call, first, m);
}

// By reference: a Tensor counts its owners, and this is on the path of every call.
Tensor run(Session& given, const Tensor& x, const Tensor& image,
           const std::optional<Tensor>& bias) {
  using stable::from;
  const std::int64_t dimensions = x.dim(), k = given.k(), n = given.n();
  LADDER_REQUIRE(1 <= dimensions && dimensions <= static_cast<std::int64_t>(kMaxDimensions),
                 "x has ", dimensions, " dimensions, not 1 to ", kMaxDimensions,
                 "; the last one must be the ", k, " columns");
  std::array<std::int64_t, kMaxDimensions> extents;
  std::int64_t m = 1;
  for (std::int64_t d = 0; d < dimensions; ++d) extents[d] = x.size(d);
  for (std::int64_t d = 0; d + 1 < dimensions; ++d) m *= extents[d];
  LADDER_REQUIRE(extents[dimensions - 1] == k, "x has ", extents[dimensions - 1],
                 " columns; the weight has ", k);
  extents[dimensions - 1] = n;
  const std::span<const std::int64_t> shape(extents.data(), static_cast<std::size_t>(dimensions));
  Session& session = given.serving(m);
  require_image(image, session);
  const auto ordinal = image.get_device_index();
  LADDER_REQUIRE(x.is_cuda() && x.get_device_index() == ordinal,
                 "x is not on the device of the weight");
  const Activation as = activation_of(x.scalar_type());
  if (bias.has_value()) require_bias(*bias, x, n);
  if (m == 0) return empty(shape, as.dtype, ordinal);

  void* const stream = current_stream(ordinal);
  // All kernels before the first pass: none must be missed halfway.
  const Session::Passes passes = session.passes(ordinal, as.scalar, m, stream);
  if (notices_pending()) [[unlikely]]
    log_notices();
  if (passes.most != nullptr) {
    const Tensor rows = readable(x);
    std::optional<Tensor> moved;
    if (bias.has_value() && !begins_at_multiple(*bias, kBiasPiece)) [[unlikely]]
      moved = stable::clone(*bias);
    const Tensor y = empty(shape, as.dtype, ordinal);
    const Call call{session, image, moved ? moved : bias, as.scalar, ordinal, stream};
    if (multiply(passes, call, rows, y, m)) [[likely]]
      return y;
  }
  const Tensor values = dense(image, session, as);
  if (!session.rounded()) {
    return stable::call("aten::linear", "", std::array{from(x), from(values), from(bias)});
  }
  // Of float32, or compiler or driver fail.
  const Tensor rounded =
      stable::call("ladder::round_tokens", "",
                   std::array{from(x), from(std::string(activation_type_of(session.rounded())))});
  return stable::call("aten::linear", "", std::array{from(rounded), from(values), from(bias)});
}

Tensor linear(const Tensor& x, const Tensor& image, const std::optional<Tensor>& bias,
              std::int64_t weight, std::int64_t n) {
  Session& session = ladder::session(weight);
  LADDER_REQUIRE(n == session.n(), "n is ", n, ", not ", session.n());
  return run(session, x, image, bias);
}

/// The session of a weight [n, k] of `type` whose image has so many words: they tell whether it has
/// an order of columns.
Session& session_of(const std::string& type, std::int64_t n, std::int64_t k, std::int64_t words,
                    bool dependent_launch, const std::string& activation_type) {
  // On the path of every call: a thread asks for the weights of one model again and again.
  struct Recent {
    std::string type, activation_type;
    std::int64_t n, k, words;
    bool dependent_launch;
    Session* session = nullptr;
  };
  thread_local std::array<Recent, 32> recents{};
  const auto mixed = static_cast<std::uint64_t>(n) * 31 + static_cast<std::uint64_t>(k) +
                     static_cast<std::uint64_t>(words);
  Recent& recent = recents[(mixed * 0x9e3779b97f4a7c15U) >> 59];
  if (recent.session != nullptr && recent.n == n && recent.k == k && recent.words == words &&
      recent.dependent_launch == dependent_launch && recent.type == type &&
      recent.activation_type == activation_type) {
    return *recent.session;
  }
  const auto rounded = rounded_called(activation_type);
  for (const bool gather : {false, true}) {
    if (gather && rounded) continue;
    Session& session =
        ladder::session(open_session(ttype(type), n, k, gather, dependent_launch, rounded));
    if (session.parts().words != words) continue;
    recent = {type, activation_type, n, k, words, dependent_launch, &session};
    return session;
  }
  fail<InvalidArgument>("image has ", words, " words, which no weight of ", type, " [", n, ", ", k,
                        "] has");
}

Tensor linear_prepacked(const Tensor& x, const Tensor& image, const std::optional<Tensor>& bias,
                        std::string type, std::int64_t n, bool dependent_launch,
                        std::string activation_type) {
  const std::int64_t dimensions = x.dim();
  LADDER_REQUIRE(dimensions > 0, "x has no dimension; its last one must be in_features");
  Session& session =
      session_of(type, n, x.size(dimensions - 1), image.numel(), dependent_launch, activation_type);
  return run(session, x, image, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("linear_image(Tensor x, Tensor image, Tensor? bias, int weight, int n) -> Tensor");
  m.def("linear_image_no_grad(Tensor x, Tensor image, Tensor? bias, int weight, int n) -> Tensor");
  m.def(
      "linear_prepacked(Tensor x, Tensor image, Tensor? bias, str type, int n, "
      "bool dependent_launch=False, str activation_type=\"\") -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("linear_image", TORCH_BOX(&linear));
  m.impl("linear_image_no_grad", TORCH_BOX(&linear));
  m.impl("linear_prepacked", TORCH_BOX(&linear_prepacked));
}

}  // namespace ladder::binding
