// SPDX-License-Identifier: Apache-2.0
#include "binding/torch/cuda_passes.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/counters.h"
#include "runtime/notices.h"

namespace ladder::binding {
namespace {

/// Where activations, their scales where they are rounded, a residual where there is one, and
/// results of a pass begin.
struct Place {
  char *x, *x_scales, *residual, *y;
};

/// `first`, so many bytes further; null stays null.
char* further(char* first, std::int64_t bytes) { return first == nullptr ? first : first + bytes; }

/// Of `m` tokens; as LinearKernel::start.
[[nodiscard]] bool launch(const LinearKernel& kernel, const Call& call, const Place& at,
                          std::int64_t m) {
  const auto& [session, image, bias, residual, y_scale, activation, ordinal, stream] = call;
  Pointers pointers(image, session.parts());
  pointers[Operand::bias] = bias.has_value() ? address(*bias) : nullptr;
  pointers[Operand::x] = at.x;
  pointers[Operand::x_scales] = at.x_scales;
  pointers[Operand::residual] = at.residual;
  pointers[Operand::y_scale] = y_scale.has_value() ? address(*y_scale) : nullptr;
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

// Of what comes and goes, and of what is wide.
constexpr std::int64_t kBytes = sizeof(std::uint16_t), kFloatBytes = sizeof(float);

/// y = x w, pass by pass. False when the driver has refused every kernel of one: `y` is then not
/// whole.
[[nodiscard]] bool multiply(const Session::Passes& passes, const Call& call, const Place& first,
                            std::int64_t m) {
  const std::int64_t of_x = call.session.k() * (passes.rounding == nullptr ? kBytes : 1),
                     of_y = call.session.columns_of_y() * call.session.bytes_of_y();
  for (std::int64_t at = 0; at < m; at += passes.step) {
    const std::int64_t tokens = std::min(passes.step, m - at);
    const Place place{first.x + at * of_x, further(first.x_scales, at * kFloatBytes),
                      further(first.residual, at * of_y), first.y + at * of_y};
    if (!pass(tokens == passes.step ? passes.most : passes.last, call, place, tokens)) return false;
  }
  return true;
}

/// The same with x brought to 8 bits before, where the passes have it so.
[[nodiscard]] bool multiply(const Session::Passes& passes, const Call& call, const Tensor& x,
                            const Tensor& y, std::int64_t m, GivenScales given) {
  const auto begin = [](const Tensor& tensor) { return static_cast<char*>(address(tensor)); };
  Place first{begin(x), nullptr, call.residual ? begin(*call.residual) : nullptr, begin(y)};
  if (passes.rounding == nullptr) return multiply(passes, call, first, m);
  // Codes, and the scales behind them: codes are whole pieces of 16 bytes.
  const std::int64_t codes = m * call.session.k();
  const Tensor rounded = empty_of(aoti_torch_dtype_uint8(), call.ordinal, codes + m * kFloatBytes);
  first.x = static_cast<char*>(address(rounded));
  first.x_scales = first.x + codes;
  return passes.rounding->start(call.stream, address(x), first.x, first.x_scales, m, given) &&
         multiply(passes, call, first, m);
}

/// A copy of a bias that begins where kernels cannot read it; nothing of others.
std::optional<Tensor> moved_bias(const std::optional<Tensor>& bias) {
  // Kernels read two numbers at once; part of a longer tensor may begin between two words.
  constexpr std::uintptr_t kPiece = 4, kWidePiece = 8;
  if (!bias.has_value()) return std::nullopt;
  const bool wide = bias->scalar_type() == ScalarType::Float;
  if (begins_at_multiple(*bias, wide ? kWidePiece : kPiece)) [[likely]]
    return std::nullopt;
  return stable::clone(*bias);
}

}  // namespace

std::optional<Tensor> multiplied(const Session::Passes& passes, const Call& call, const Tensor& x,
                                 const Tokens& tokens, std::int32_t dtype, GivenScales given) {
  if (notices_pending()) [[unlikely]]
    log_notices();
  if (passes.most == nullptr) return std::nullopt;
  const Tensor rows = readable(x);
  const std::optional<Tensor> moved = moved_bias(call.bias);
  std::optional<Tensor> residual;
  if (call.residual.has_value()) residual = readable(*call.residual);
  Tensor y = empty(tokens.shape(), dtype, call.ordinal);
  const Call read{call.session, call.image,   moved ? moved : call.bias,
                  residual,     call.y_scale, call.activation,
                  call.ordinal, call.stream};
  if (!multiply(passes, read, rows, y, tokens.count(), given)) [[unlikely]]
    return std::nullopt;
  return y;
}

Tokens::Tokens(const Tensor& x, std::int64_t k, std::int64_t n)
    : dimensions_(static_cast<std::size_t>(x.dim())) {
  LADDER_REQUIRE(1 <= dimensions_ && dimensions_ <= kMaxDimensions, "x has ", dimensions_,
                 " dimensions, not 1 to ", kMaxDimensions, "; the last one must be the ", k,
                 " columns");
  for (std::size_t d = 0; d < dimensions_; ++d) {
    extents_[d] = x.size(static_cast<std::int64_t>(d));
    if (d + 1 < dimensions_) count_ *= extents_[d];
  }
  LADDER_REQUIRE(extents_[dimensions_ - 1] == k, "x has ", extents_[dimensions_ - 1],
                 " columns; the weight has ", k);
  extents_[dimensions_ - 1] = n;
}

void require_bias(const Tensor& bias, ScalarType dtype, std::int64_t n, std::int32_t ordinal) {
  LADDER_REQUIRE(bias.scalar_type() == dtype && bias.numel() == n && bias.is_contiguous() &&
                     bias.is_cuda() && bias.get_device_index() == ordinal,
                 "bias is ", bias.numel(), " numbers of ", name(bias.scalar_type()), ", not ", n,
                 " contiguous ones of ", name(dtype), " on the device of x");
}

void require_residual(const Tensor& residual, const Tokens& tokens, ScalarType dtype,
                      std::int32_t ordinal) {
  require_like_y(residual, tokens.shape(), dtype);
  LADDER_REQUIRE(residual.is_cuda() && residual.get_device_index() == ordinal,
                 "residual is not on the device of x");
}

GivenScales given_scales(const std::optional<Tensor>& scales, std::int64_t m,
                         std::int32_t ordinal) {
  if (!scales.has_value()) return {};
  const std::int64_t count = scales->numel();
  LADDER_REQUIRE(scales->scalar_type() == ScalarType::Float && (count == 1 || count == m) &&
                     scales->is_contiguous() && scales->is_cuda() &&
                     scales->get_device_index() == ordinal,
                 "x_scale is ", count, " numbers of ", name(scales->scalar_type()), ", not 1 or ",
                 m, " contiguous ones of float32 on the device of x");
  return {address(*scales), count != 1};
}

void require_out_scale(const std::optional<Tensor>& scale, ScalarType dtype, std::int32_t ordinal) {
  const auto scalar = scalar_of(dtype);
  const bool wanted = scalar == Scalar::s8 || scalar == Scalar::e4m3;
  LADDER_REQUIRE(scale.has_value() == wanted, "out_scale is ", wanted ? "missing" : "given",
                 ", and y has dtype ", name(dtype));
  if (!wanted) return;
  LADDER_REQUIRE(scale->scalar_type() == ScalarType::Float && scale->numel() == 1 &&
                     scale->is_cuda() && scale->get_device_index() == ordinal,
                 "out_scale is ", scale->numel(), " numbers of ", name(scale->scalar_type()),
                 ", not one of float32 on the device of x");
}

}  // namespace ladder::binding
