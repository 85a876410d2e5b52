// SPDX-License-Identifier: Apache-2.0
// The products of a layer of experts: one launch for all items of a table.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "binding/torch/cuda_items.h"
#include "pipelines/linear/raster.h"
#include "runtime/gpus.h"
#include "runtime/notices.h"

namespace ladder::binding {
namespace {

/// Rows of activations; rounded ones are codes, each row with a scale. `as` are the results.
struct Rows {
  const Tensor& x;
  const Tensor* scales;
  Activation as;
};

Tensor multiply(const Rows& given, const Tensor& images, const std::optional<Tensor>& bias,
                const Tensor& items, std::int64_t weight, std::int64_t n, std::int64_t of_item) {
  Session& session = ladder::session(weight);
  const auto& [x, scales, as] = given;
  LADDER_REQUIRE(session.rounded().has_value() == (scales != nullptr), "activations of the weight ",
                 weight, " are rounded to \"", activation_type_of(session.rounded()),
                 "\", and these are ", scales != nullptr ? "codes" : "as they come");
  require_matrix(images, "images");
  require_matrix(items, "items");
  const auto ordinal = x.get_device_index();
  const std::int64_t experts = images.size(0), rows = x.size(0), count = items.size(0);
  LADDER_REQUIRE(n == session.columns_of_y(), "n is ", n, ", not ", session.columns_of_y());
  LADDER_REQUIRE(x.size(1) == session.k(), "x has ", x.size(1), " columns; the weights have ",
                 session.k());
  LADDER_REQUIRE(images.size(1) == session.parts().words && images.scalar_type() == ScalarType::Int,
                 "images are [", experts, ", ", images.size(1), "] of ", name(images.scalar_type()),
                 ", not [., ", session.parts().words, "] of int32");
  LADDER_REQUIRE(items.size(1) == kItemWords && items.scalar_type() == ScalarType::Int,
                 "items are ", shape(items), " of ", name(items.scalar_type()), ", not [., ",
                 kItemWords, "] of int32");
  LADDER_REQUIRE(images.get_device_index() == ordinal && items.get_device_index() == ordinal,
                 "images, items and x are not on one device");
  LADDER_REQUIRE(std::ranges::find(kItemRows, of_item) != kItemRows.end(), "items of ", of_item,
                 " rows, for which there are no kernels");
  const std::int64_t of_bias = round_up(session.n(), kBiasOfExpert);
  if (bias.has_value()) {
    require_matrix(*bias, "bias");
    LADDER_REQUIRE(bias->size(0) == experts && bias->size(1) == of_bias &&
                       activation_of(bias->scalar_type()).scalar == as.scalar &&
                       bias->get_device_index() == ordinal,
                   "bias is ", shape(*bias), " of ", name(bias->scalar_type()), ", not [", experts,
                   ", ", of_bias, "] of ", name_of(as.scalar), " on the device of x");
  }
  LADDER_REQUIRE(count <= kMostOfGrid, count, " items, of at most ", kMostOfGrid);
  Tensor y = empty_of(as.dtype, ordinal, rows, n);
  if (rows == 0 || count == 0) return y;
  const Tensor from = readable(x);
  void* const stream = current_stream(ordinal);
  ExpertProducts& products = expert_products(weight);
  const ExpertProducts::Question question{ordinal, as.scalar, experts, of_item, rows};
  const LinearKernel* kernel = products.kernel(question, stream);
  const std::optional<Tensor> no_residual;
  // Each item has its own tokens.
  const ItemsLaunch call{session, images, bias, from,    scales, y,
                         &items,  count,  0,    ordinal, stream, no_residual};
  while (kernel != nullptr && !launch(*kernel, call)) {
    kernel = products.instead_of(*kernel, question, stream);
  }
  if (kernel == nullptr) {
    fail<Unsupported>("no kernel multiplies ", of_item, " rows by experts of ",
                      to_string(session.type()), " [", n, ", ", session.k(), "]");
  }
  return y;
}

Tensor expert_linear(Tensor x, Tensor images, std::optional<Tensor> bias, Tensor items,
                     std::int64_t weight, std::int64_t n, std::int64_t of_item) {
  half_of(x, "x");
  require_matrix(x, "x");
  const Rows rows{x, nullptr, activation_of(x.scalar_type())};
  return multiply(rows, images, bias, items, weight, n, of_item);
}

/// The same of rows as route_rounded() and rounded_codes() have them.
Tensor expert_linear_rounded(Tensor codes, Tensor scales, Tensor images, std::optional<Tensor> bias,
                             Tensor items, std::int64_t weight, std::int64_t n,
                             std::int64_t of_item, ScalarType dtype) {
  require_rounded_rows(codes, scales);
  const Activation as = activation_of(dtype);
  LADDER_REQUIRE(as.scalar != Scalar::f32, "dtype is float32, not float16 or bfloat16");
  return multiply({codes, &scales, as}, images, bias, items, weight, n, of_item);
}

/// The number of the same weight for activations that are rounded so; "" for as they come.
std::int64_t weight_for(std::int64_t weight, std::string activation_type) {
  const Session& of = session(weight);
  return open_session(of.type(), of.n(), of.k(), of.gather(), of.dependent_launch(),
                      rounded_called(activation_type), false, of.gating(), of.function());
}

/// Most rows of an item for `rows` rows of `experts` experts: with which the products by two stacks
/// are expected to take least, or 0 where there are no kernels. Compiled and remembered.
std::int64_t expert_rows(std::int64_t gate_up, std::int64_t down, std::int64_t experts,
                         std::int64_t rows, ScalarType dtype, std::int64_t device) {
  using Key = std::array<std::int64_t, 6>;
  static std::mutex mutex;
  static auto& known = *new std::map<Key, std::int64_t>;
  const auto ordinal = static_cast<int>(device);
  const Scalar scalar = activation_of(dtype).scalar;
  if (scalar == Scalar::f32 || gpus().routing == nullptr || rows < 1) return 0;
  const auto counted = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(
      {gate_up, down, experts, counted, static_cast<std::int64_t>(scalar), device}, 0);
  if (!is_new) return found->second;
  void* const stream = current_stream(ordinal);
  ExpertProducts& first = expert_products(gate_up);
  ExpertProducts& second = expert_products(down);
  ExpertProducts::Question question{ordinal, scalar, experts, 0, counted};
  try {
    for (const std::int64_t of_item : rows_of_items(first, second, question)) {
      question.of_item = of_item;
      if (first.kernel(question, stream) == nullptr) continue;
      if (second.kernel(question, stream) == nullptr) continue;
      found->second = of_item;
      break;
    }
  } catch (...) {
    known.erase(found);
    throw;
  }
  if (notices_pending()) log_notices();
  return found->second;
}

/// Compiles, several at a time, what expert_rows() would one by one for each number of rows.
void compile_experts(std::int64_t gate_up, std::int64_t down, std::int64_t experts,
                     std::vector<std::int64_t> rows, ScalarType dtype, std::int64_t device) {
  const Scalar scalar = activation_of(dtype).scalar;
  if (scalar == Scalar::f32 || gpus().routing == nullptr) return;
  compile_ahead(expert_products(gate_up), expert_products(down),
                {static_cast<int>(device), scalar, experts, 0, 0}, rows);
}

ExpertProducts::Question question(std::int64_t experts, std::int64_t rows, std::int64_t of_item,
                                  ScalarType dtype, std::int64_t device, const std::string& items) {
  ExpertProducts::Question out{static_cast<int>(device), activation_of(dtype).scalar, experts,
                               of_item, rows};
  set_items(out, items);
  return out;
}

/// The scheduler's first choices, one a line, for measuring.
std::string expert_schedules(std::int64_t weight, std::int64_t experts, std::int64_t rows,
                             std::int64_t of_item, ScalarType dtype, std::int64_t device,
                             std::int64_t count, std::string items) {
  const auto found = expert_products(weight).schedules(
      question(experts, rows, of_item, dtype, device, items), static_cast<std::size_t>(count));
  std::string lines;
  for (const auto& schedule : found) lines += (lines.empty() ? "" : "\n") + schedule;
  return lines;
}

void use_expert_schedule(std::int64_t weight, std::int64_t experts, std::int64_t rows,
                         std::int64_t of_item, ScalarType dtype, std::int64_t device,
                         std::string schedule, std::int64_t measured, std::string items) {
  expert_products(weight).use(question(experts, rows, of_item, dtype, device, items), schedule,
                              measured);
}

bool has_expert_plan(std::int64_t weight, std::int64_t experts, std::int64_t rows,
                     std::int64_t of_item, ScalarType dtype, std::int64_t device,
                     std::int64_t measured, std::string items) {
  return expert_products(weight).has_plan(question(experts, rows, of_item, dtype, device, items),
                                          measured);
}

/// Tables of items of so many rows have a multiple of it, some without rows.
std::int64_t together(std::int64_t of_item) { return items_together(of_item); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def(
      "expert_linear(Tensor x, Tensor images, Tensor? bias, Tensor items, int weight, int n, "
      "int of_item) -> Tensor");
  m.def(
      "expert_linear_rounded(Tensor codes, Tensor scales, Tensor images, Tensor? bias, "
      "Tensor items, int weight, int n, int of_item, ScalarType dtype) -> Tensor");
  m.def("items_together(int of_item) -> int");
  m.def("weight_for(int weight, str activation_type) -> int");
  m.def(
      "expert_rows(int gate_up, int down, int experts, int rows, ScalarType dtype, int device) -> "
      "int");
  m.def(
      "compile_experts(int gate_up, int down, int experts, int[] rows, ScalarType dtype, "
      "int device) -> ()");
  m.def(
      "expert_schedules(int weight, int experts, int rows, int of_item, ScalarType dtype, "
      "int device, int count, str items=\"experts\") -> str");
  m.def(
      "use_expert_schedule(int weight, int experts, int rows, int of_item, ScalarType dtype, "
      "int device, str schedule, int measured=0, str items=\"experts\") -> ()");
  m.def(
      "has_expert_plan(int weight, int experts, int rows, int of_item, ScalarType dtype, "
      "int device, int measured, str items=\"experts\") -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("expert_linear", TORCH_BOX(&expert_linear));
  m.impl("expert_linear_rounded", TORCH_BOX(&expert_linear_rounded));
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("items_together", TORCH_BOX(&together));
  m.impl("weight_for", TORCH_BOX(&weight_for));
  m.impl("expert_rows", TORCH_BOX(&expert_rows));
  m.impl("compile_experts", TORCH_BOX(&compile_experts));
  m.impl("expert_schedules", TORCH_BOX(&expert_schedules));
  m.impl("use_expert_schedule", TORCH_BOX(&use_expert_schedule));
  m.impl("has_expert_plan", TORCH_BOX(&has_expert_plan));
}

}  // namespace ladder::binding
