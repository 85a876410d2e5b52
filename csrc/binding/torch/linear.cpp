// SPDX-License-Identifier: Apache-2.0
// torch.ops.ladder.linear on the CPU.
#include "cpu/int8/linear.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "binding/torch/tensors.h"
#include "cpu/int8/codes.h"

namespace ladder::binding {
namespace {

std::atomic<cpu::Isa>& chosen_isa() {
  static std::atomic<cpu::Isa> isa = cpu::available_isas().back();
  return isa;
}

/// torch's own matrix product on decoded tiles.
void torch_gemm(const float* x, std::int64_t m, std::int64_t k, const float* w, std::int64_t n,
                float* y, std::int64_t y_stride) {
  const auto view = [](const float* data, std::array<std::int64_t, 2> shape,
                       std::array<std::int64_t, 2> strides) {
    return stable::from(stable::from_blob(const_cast<float*>(data), shape, strides));
  };
  stable::call(
      "aten::mm", "out",
      std::array{view(x, {m, k}, {k, 1}), view(w, {k, n}, {1, k}), view(y, {m, n}, {y_stride, 1})});
}

/// What the products on the CPU have in common: `multiply` gets views of checked arguments.
template <class Multiply>
Tensor product(const Tensor& x, const WeightArguments& parts, const std::optional<Tensor>& bias,
               const std::string& type, const std::optional<Tensor>& residual, Multiply multiply) {
  LADDER_REQUIRE(x.dim() >= 1, "x has no dimension; its last one must be in_features");
  LADDER_REQUIRE(x.is_cpu(), "x is not on the cpu, and qweight is");
  const std::int64_t k = x.size(x.dim() - 1);
  const WeightView view = view_weight(parts, ttype(type), k);
  check_g_idx(view);
  const Scalar kind = float_kind(x.scalar_type(), "x");
  if (bias.has_value()) {
    require(*bias, "bias", x.scalar_type(), 1);
    LADDER_REQUIRE(bias->size(0) == view.n, "bias has ", bias->size(0), " numbers, not ", view.n,
                   ", the rows of qweight");
  }
  std::vector<std::int64_t> shape;
  std::int64_t m = 1;
  for (std::int64_t d = 0; d + 1 < x.dim(); ++d) {
    shape.push_back(x.size(d));
    m *= x.size(d);
  }
  shape.push_back(view.n);
  std::optional<Tensor> added;
  if (residual.has_value()) {
    LADDER_REQUIRE(residual->is_cpu(), "residual is not on the cpu, and x is");
    require_like_y(*residual, shape, x.scalar_type());
    added = residual->is_contiguous() ? *residual : stable::contiguous(*residual);
  }
  const Tensor rows = x.is_contiguous() ? x : stable::contiguous(x);
  Tensor y = stable::new_empty(x, shape);
  multiply(view,
           cpu::Matrix{.data = const_cast<void*>(rows.const_data_ptr()),
                       .dtype = kind,
                       .rows = m,
                       .columns = k,
                       .stride = k},
           cpu::Addends{.bias = bias.has_value() ? bias->const_data_ptr() : nullptr,
                        .residual = added.has_value() ? added->const_data_ptr() : nullptr},
           cpu::Matrix{.data = y.mutable_data_ptr(),
                       .dtype = kind,
                       .rows = m,
                       .columns = view.n,
                       .stride = view.n});
  return y;
}

Tensor linear(Tensor x, Tensor qweight, std::optional<Tensor> scales, std::optional<Tensor> zeros,
              std::optional<Tensor> scale2, std::optional<Tensor> g_idx, std::optional<Tensor> bias,
              std::string type, std::optional<Tensor> residual) {
  return product(
      x, {qweight, scales, zeros, scale2, g_idx}, bias, type, residual,
      [](const auto&... a) { cpu::linear(a..., cpu_isa(), torch_parallel, torch_gemm); });
}

Tensor linear_int8(Tensor x, Tensor qweight, std::optional<Tensor> scales,
                   std::optional<Tensor> zeros, std::optional<Tensor> scale2,
                   std::optional<Tensor> g_idx, std::optional<Tensor> bias, std::string type,
                   std::optional<Tensor> residual) {
  return product(x, {qweight, scales, zeros, scale2, g_idx}, bias, type, residual,
                 [](const auto&... a) { cpu::int8::linear(a..., cpu_isa(), torch_parallel); });
}

/// Why weights of `type` with k columns take no x of 8 bits, "" when they do, and what becomes of
/// both, as JSON: columns of x that share a scale, and the values that codes then have.
std::string int8_info(std::string type, std::int64_t k) {
  const TType& parsed = ttype(type);
  std::string objection;
  std::ostringstream values;
  bool exact = false;
  values << std::setprecision(9);
  try {
    cpu::int8::check_type(parsed, k);
    const auto& codes = cpu::int8::codes_of(*parsed.element);
    exact = codes.exact;
    for (int code = 0; code < 1 << parsed.element->bits; ++code)
      values << (code > 0 ? ", " : "")
             << static_cast<float>(codes.u[code] - codes.zero) * codes.step;
  } catch (const Unsupported& error) {
    objection = error.what();
  }
  std::ostringstream out;
  out << "{\"objection\": \"" << objection << "\", \"block\": " << cpu::int8::x_block(parsed, k)
      << ", \"exact\": " << (exact ? "true" : "false") << ", \"values\": [" << values.str() << "]}";
  return out.str();
}

std::string cpu_isas() {
  std::string names;
  for (const cpu::Isa isa : cpu::available_isas())
    names += (names.empty() ? "" : " ") + std::string(cpu::name(isa));
  return names;
}

/// Chooses the kernels of a narrower instruction set; "" returns to the widest. Returns the choice.
std::string use_cpu_isa(std::string wanted) {
  const auto isas = cpu::available_isas();
  cpu::Isa chosen = isas.back();
  if (!wanted.empty()) {
    const auto found = std::find_if(isas.begin(), isas.end(),
                                    [&](cpu::Isa isa) { return cpu::name(isa) == wanted; });
    LADDER_REQUIRE(found != isas.end(), "instruction set \"", wanted,
                   "\" is not one of this machine's: ", cpu_isas());
    chosen = *found;
  }
  chosen_isa().store(chosen);
  return std::string(cpu::name(chosen));
}

}  // namespace

cpu::Isa cpu_isa() { return chosen_isa().load(std::memory_order_relaxed); }

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def(
      "linear(Tensor x, Tensor qweight, Tensor? scales, Tensor? zeros, Tensor? scale2, "
      "Tensor? g_idx, Tensor? bias, str type, Tensor? residual=None) -> Tensor");
  m.def(
      "linear_int8(Tensor x, Tensor qweight, Tensor? scales, Tensor? zeros, Tensor? scale2, "
      "Tensor? g_idx, Tensor? bias, str type, Tensor? residual=None) -> Tensor");
  // Of GPUs alone (ladder/ops/fallback.py).
  m.def(
      "linear_float8_e4m3(Tensor x, Tensor qweight, Tensor? scales, Tensor? zeros, "
      "Tensor? scale2, Tensor? g_idx, Tensor? bias, str type, Tensor? residual=None) -> Tensor");
  m.def("int8_info(str type, int k) -> str");
  m.def("cpu_isas() -> str");
  m.def("use_cpu_isa(str name) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CPU, m) {
  m.impl("linear", TORCH_BOX(&linear));
  m.impl("linear_int8", TORCH_BOX(&linear_int8));
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("int8_info", TORCH_BOX(&int8_info));
  m.impl("cpu_isas", TORCH_BOX(&cpu_isas));
  m.impl("use_cpu_isa", TORCH_BOX(&use_cpu_isa));
}

}  // namespace ladder::binding
