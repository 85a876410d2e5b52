// SPDX-License-Identifier: Apache-2.0
// Products of a batch, and convolutions: one launch for all items, without a table.
#include "binding/torch/cuda_items.h"

#include "base/error.h"
#include "base/integers.h"
#include "expr/windows_text.h"
#include "pipelines/linear/raster.h"
#include "runtime/counters.h"
#include "runtime/notices.h"

namespace ladder::binding {

bool launch(const LinearKernel& kernel, const ItemsLaunch& of) {
  const std::int64_t count =
      of.table != nullptr ? of.count : round_up(of.count, kernel.items_together);
  Pointers pointers(of.images, of.session.parts());
  // Part of a longer tensor may begin where kernels cannot read it.
  std::optional<Tensor> bias = of.bias;
  if (bias.has_value() && !begins_at_multiple(*bias, kItemAlignment)) bias = stable::clone(*bias);
  pointers[Operand::bias] = bias.has_value() ? address(*bias) : nullptr;
  pointers[Operand::x] = address(of.x);
  if (of.scales != nullptr) pointers[Operand::x_scales] = address(*of.scales);
  if (of.residual.has_value()) pointers[Operand::residual] = address(*of.residual);
  pointers[Operand::y] = address(of.y);
  if (of.table != nullptr) pointers[Operand::items] = address(*of.table);
  std::optional<Tensor> workspace;
  if (kernel.workspace.floats > 0) {
    workspace = empty_of(aoti_torch_dtype_float32(), of.ordinal, kernel.workspace.floats * count);
    pointers[Operand::workspace] = address(*workspace);
  }
  if (kernel.workspace.counters > 0) {
    pointers[Operand::counters] =
        take_counters(of.ordinal, counters_of_item(kernel.workspace.counters) * count, of.stream);
  }
  auto tokens = static_cast<std::uint32_t>(of.tokens);
  Launch grid = kernel.launch;
  LADDER_CHECK(count % kernel.items_together == 0, count, " items, no groups of ",
               kernel.items_together);
  grid.grid[2] = static_cast<unsigned>(count / kernel.items_together);
  return kernel.kernel->launch(grid, of.stream, pointers.arguments(kernel, tokens).data());
}

void set_items(ExpertProducts::Question& question, const std::string& items) {
  if (items == "experts") return;
  if (items == "batch") {
    question.items = ItemsOf::batch;
    return;
  }
  question.items = ItemsOf::windows;
  question.windows = windows_from(items);
}

namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 31;

/// Writes y [weights, rows, n] of what the question asks; x begins at a multiple of 16 bytes. False
/// where no kernel does.
[[nodiscard]] bool multiply(ExpertProducts::Question q, std::int64_t weight,
                            const ItemsLaunch& given) {
  ItemsLaunch of = given;
  LADDER_REQUIRE(q.rows * q.experts < kMostRows, q.rows * q.experts, " rows, of at most ",
                 kMostRows - 1);
  q.of_item = rows_of_items(weight, q, of.stream);
  ExpertProducts& products = expert_products(weight);
  const LinearKernel* kernel = q.of_item > 0 ? products.kernel(q, of.stream) : nullptr;
  of.count = q.of_item > 0 ? q.experts * ceil_div(q.rows, q.of_item) : 0;
  if (of.count > kMostOfGrid) kernel = nullptr;
  while (kernel != nullptr && !launch(*kernel, of)) {
    kernel = products.instead_of(*kernel, q, of.stream);
  }
  if (notices_pending()) log_notices();
  return kernel != nullptr;
}

void require_images(const Tensor& images, const Tensor& x, const Session& session, std::int64_t n) {
  require_matrix(images, "images");
  LADDER_REQUIRE(n == session.n(), "n is ", n, ", not ", session.n());
  LADDER_REQUIRE(!session.rounded(), "activations of the weight are rounded to ",
                 activation_type_of(session.rounded()), ", and these come as they are");
  LADDER_REQUIRE(!session.gating(), "weights of gate and up in turn, which are no batch's");
  LADDER_REQUIRE(!session.function(), name_of(*session.function()), " of products of a batch");
  LADDER_REQUIRE(images.size(1) == session.parts().words && images.scalar_type() == ScalarType::Int,
                 "images are ", shape(images), " of ", name(images.scalar_type()), ", not [., ",
                 session.parts().words, "] of int32");
  LADDER_REQUIRE(images.get_device_index() == x.get_device_index(),
                 "images and x are not on one device");
  LADDER_REQUIRE(x.is_contiguous() && x.is_cuda(), "x of shape ", shape(x),
                 " is not contiguous on a GPU");
}

void require_bias(const std::optional<Tensor>& bias, std::int64_t rows, std::int64_t columns,
                  Scalar scalar, std::int32_t ordinal) {
  if (!bias.has_value()) return;
  require_matrix(*bias, "bias");
  LADDER_REQUIRE(bias->size(0) == rows && bias->size(1) == columns &&
                     activation_of(bias->scalar_type()).scalar == scalar &&
                     bias->get_device_index() == ordinal,
                 "bias is ", shape(*bias), " of ", name(bias->scalar_type()), ", not [", rows, ", ",
                 columns, "] of ", name_of(scalar), " on the device of x");
}

/// The residual as kernels can read it. Throws InvalidArgument unless it is as y.
std::optional<Tensor> readable_residual(const std::optional<Tensor>& residual, const Tensor& y) {
  if (!residual.has_value()) return std::nullopt;
  std::vector<std::int64_t> extents;
  for (std::int64_t d = 0; d < y.dim(); ++d) extents.push_back(y.size(d));
  require_like_y(*residual, extents, y.scalar_type());
  LADDER_REQUIRE(residual->is_cuda() && residual->get_device_index() == y.get_device_index(),
                 "residual is not on the device of x");
  return readable(*residual);
}

/// y[b] = x[b] times the weight b, plus bias[b], plus residual[b]: [batch, rows, n] of [batch,
/// rows, k]. Nothing where no kernel multiplies so.
std::vector<Tensor> batched_linear(Tensor x, Tensor images, std::optional<Tensor> bias,
                                   std::int64_t weight, std::int64_t n,
                                   std::optional<Tensor> residual) {
  const Scalar scalar = half_of(x, "x");
  Session& session = ladder::session(weight);
  require_images(images, x, session, n);
  LADDER_REQUIRE(x.dim() == 3 && x.size(0) == images.size(0) && x.size(2) == session.k(), "x is ",
                 shape(x), ", not [", images.size(0), ", ., ", session.k(), "]");
  const std::int64_t batch = x.size(0), rows = x.size(1);
  const auto ordinal = x.get_device_index();
  require_bias(bias, batch, round_up(n, kBiasOfExpert), scalar, ordinal);
  Tensor y = empty_of(activation_of(x.scalar_type()).dtype, ordinal, batch, rows, n);
  const auto added = readable_residual(residual, y);
  if (rows == 0) return {y};
  const Tensor from = readable(x);
  ExpertProducts::Question question{ordinal, scalar, batch, 0, rows, ItemsOf::batch};
  question.residual = added.has_value();
  const bool done = multiply(question, weight,
                             {session, images, bias, from, nullptr, y, nullptr, 0, rows, ordinal,
                              current_stream(ordinal), added});
  return done ? std::vector{y} : std::vector<Tensor>{};
}

/// y [images, y, x, n] of images [images, y, x, channels], with the windows that `windows` says, as
/// set_items() reads it, by the only weight [n, y x channels] of a stack; bias [1, n]. Nothing
/// where no kernel does.
std::vector<Tensor> convolution(Tensor x, Tensor images, std::optional<Tensor> bias,
                                std::int64_t weight, std::int64_t n, std::string windows,
                                std::optional<Tensor> residual) {
  const Scalar scalar = half_of(x, "x");
  Session& session = ladder::session(weight);
  require_images(images, x, session, n);
  LADDER_REQUIRE(images.size(0) == 1, images.size(0), " weights of a convolution");
  ExpertProducts::Question question{x.get_device_index(), scalar, 1, 0, 0};
  set_items(question, windows);
  LADDER_REQUIRE(question.windows.has_value(), "windows are \"", windows, "\", not eleven numbers");
  const Windows& of = *question.windows;
  LADDER_REQUIRE(
      x.dim() == 4 && x.size(1) == of.y.size && x.size(2) == of.x.size && x.size(3) == of.channels,
      "x is ", shape(x), ", not [., ", of.y.size, ", ", of.x.size, ", ", of.channels, "]");
  LADDER_REQUIRE(of.columns() == session.k(), "windows have ", of.columns(),
                 " numbers, and the weight ", session.k(), " columns");
  const std::int64_t count = x.size(0);
  const auto ordinal = x.get_device_index();
  require_bias(bias, 1, n, scalar, ordinal);
  Tensor y = empty_of(activation_of(x.scalar_type()).dtype, ordinal, count, of.y.positions(),
                      of.x.positions(), n);
  question.rows = count * of.positions();
  const auto added = readable_residual(residual, y);
  question.residual = added.has_value();
  if (question.rows == 0) return {y};
  const Tensor from = readable(x);
  const bool done = multiply(question, weight,
                             {session, images, bias, from, nullptr, y, nullptr, 0, question.rows,
                              ordinal, current_stream(ordinal), added});
  return done ? std::vector{y} : std::vector<Tensor>{};
}

/// Most rows of an item of a batch or of windows, as rows_of_items() finds them; 0: no kernels.
std::int64_t item_rows(std::int64_t weight, std::int64_t experts, std::int64_t rows,
                       ScalarType dtype, std::int64_t device, std::string items) {
  const auto ordinal = static_cast<int>(device);
  const Scalar scalar = activation_of(dtype).scalar;
  if (scalar == Scalar::f32 || rows < 1) return 0;
  ExpertProducts::Question question{ordinal, scalar, experts, 0, rows};
  set_items(question, items);
  LADDER_REQUIRE(question.items != ItemsOf::experts, "items are \"", items,
                 "\", whose rows ladder::expert_rows finds");
  const auto found = rows_of_items(weight, question, current_stream(ordinal));
  if (notices_pending()) log_notices();
  return found;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def(
      "batched_linear(Tensor x, Tensor images, Tensor? bias, int weight, int n, "
      "Tensor? residual=None) -> Tensor[]");
  m.def(
      "convolution(Tensor x, Tensor images, Tensor? bias, int weight, int n, str windows, "
      "Tensor? residual=None) -> Tensor[]");
  m.def(
      "item_rows(int weight, int experts, int rows, ScalarType dtype, int device, str items) -> "
      "int");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("batched_linear", TORCH_BOX(&batched_linear));
  m.impl("convolution", TORCH_BOX(&convolution));
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("item_rows", TORCH_BOX(&item_rows));
}

}  // namespace ladder::binding
