// SPDX-License-Identifier: Apache-2.0
// Layers of experts on weight images: routed rows, one launch for the products of all experts.
#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "base/integers.h"
#include "base/joined.h"
#include "binding/torch/cuda.h"
#include "codegen/target.h"
#include "runtime/counters.h"
#include "runtime/expert_products.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"
#include "runtime/notices.h"

namespace ladder::binding {
namespace {

constexpr std::int64_t kMostOfGrid = 65535;  // along its second and third dimension
constexpr std::int64_t kBytesOfPiece = 16;

/// Kernels of routing, which every layer has in common, found by what they are.
template <class Source>
SharedKernel routing_kernel(int ordinal, std::tuple<int, int, int> what, const char* name,
                            void* stream, const Source& source) {
  static std::mutex mutex;
  static auto& all =
      *new std::map<std::tuple<int, std::string, std::tuple<int, int, int>>, SharedKernel>;
  const std::lock_guard lock(mutex);
  SharedKernel& kernel = all[{ordinal, name, what}];
  if (kernel == nullptr) {
    if (gpus().driver.capturing(stream, ordinal)) {
      fail<Unsupported>("the kernel ", name,
                        " is not compiled, and a CUDA graph is being captured: call the layer once "
                        "before the capture");
    }
    kernel = load_kernel(source(), name, ordinal, 0);
    keep_loaded(kernel);
  }
  return kernel;
}

template <std::size_t Pointers>
struct Arguments {
  std::array<void*, Pointers> pointers;
  std::array<std::uint32_t, 7> numbers;
};

template <std::size_t Pointers>
void start(const SharedKernel& kernel, std::array<unsigned, 3> grid, int ordinal, void* stream,
           Arguments<Pointers> given) {
  std::array<void*, Pointers + 7> arguments;
  for (std::size_t i = 0; i < Pointers; ++i) arguments[i] = &given.pointers[i];
  for (std::size_t i = 0; i < 7; ++i) arguments[Pointers + i] = &given.numbers[i];
  const Launch launch{
      {grid[0], grid[1], grid[2]}, kRoutingThreads, 0, device_row(ordinal).dependent_launch()};
  if (!kernel->launch(launch, stream, arguments.data())) refused("of routed rows");
}

Scalar half_of(const Tensor& x, const char* name) {
  const Scalar scalar = activation_of(x.scalar_type()).scalar;
  LADDER_REQUIRE(scalar != Scalar::f32, name, " is float32, not float16 or bfloat16");
  return scalar;
}

void require_matrix(const Tensor& x, const char* name) {
  LADDER_REQUIRE(x.dim() == 2 && x.is_contiguous() && x.is_cuda(), name, " of shape ", shape(x),
                 " is no contiguous matrix on a GPU");
}

bool whole_pieces(std::int64_t columns) { return columns * 2 % kBytesOfPiece == 0; }
RowKind kind_of(std::int64_t columns, int ordinal) {
  return {whole_pieces(columns), device_row(ordinal).dependent_launch()};
}
std::uint32_t pieces_of(std::int64_t columns) {
  return static_cast<std::uint32_t>(whole_pieces(columns) ? columns * 2 / kBytesOfPiece : columns);
}

/// [columns / threads, rows] for kernels whose blocks go on to further rows.
std::array<unsigned, 3> grid_of_rows(std::int64_t columns, std::int64_t rows) {
  return {static_cast<unsigned>(
              ceil_div(std::int64_t{pieces_of(columns)}, std::int64_t{kRoutingThreads})),
          static_cast<unsigned>(std::min(rows, kMostOfGrid)), 1};
}

std::vector<Tensor> route(Tensor x, Tensor experts, std::int64_t count, std::int64_t of_item) {
  half_of(x, "x");
  require_matrix(experts, "experts");
  const bool wide = experts.scalar_type() == ScalarType::Long;
  LADDER_REQUIRE(wide || experts.scalar_type() == ScalarType::Int, "experts has dtype ",
                 name(experts.scalar_type()), ", not int32 or int64");
  const std::int64_t tokens = x.size(0), k = x.size(1), of_token = experts.size(1);
  LADDER_REQUIRE(experts.size(0) == tokens, "experts are those of ", experts.size(0),
                 " tokens, and x has ", tokens);
  LADDER_REQUIRE(1 <= count && count <= kMostExperts, count, " experts, not 1 to ", kMostExperts);
  LADDER_REQUIRE(of_item >= 1, "items of ", of_item, " rows");
  const Tensor from = readable(x);
  const auto ordinal = x.get_device_index();
  LADDER_REQUIRE(experts.get_device_index() == ordinal, "experts is not on the device of x");
  const std::int64_t choices = tokens * of_token, slots = most_items(choices, count, of_item);
  Tensor rows = empty_of(activation_of(x.scalar_type()).dtype, ordinal, choices, k);
  Tensor items = empty_of(aoti_torch_dtype_int32(), ordinal, slots, kItemWords);
  Tensor places = empty_of(aoti_torch_dtype_int32(), ordinal, tokens, of_token);
  if (choices > 0) {
    void* const stream = current_stream(ordinal);
    const RowKind kind = kind_of(k, ordinal);
    const auto kernel = routing_kernel(ordinal, {kind.whole, 0, 0}, "route", stream,
                                       [&] { return routing_kernels(gpus()).route(kind); });
    const std::int64_t fill = 2 * std::int64_t{device_row(ordinal).multiprocessors};
    const auto blocks = std::max(std::min(choices, fill), ceil_div(choices, kMostChoicesOfBlock));
    const auto number = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
    start<5>(kernel, {number(blocks), 1, 1}, ordinal, stream,
             {{address(experts), address(from), address(rows), address(items), address(places)},
              {number(choices), number(of_token), wide, number(count), number(of_item),
               pieces_of(k), number(slots)}});
  }
  return {rows, items, places};
}

/// y [rows, n / 2] of gate and up side by side.
Tensor gated(Tensor x, std::string what, double limit, double alpha) {
  const Scalar scalar = half_of(x, "x");
  require_matrix(x, "x");
  const auto found = gated_called(what);
  LADDER_REQUIRE(found.has_value(), "activation is ", what,
                 ", which no kernel has");
  LADDER_REQUIRE(x.size(1) % 2 == 0, "x has ", x.size(1), " columns, which are no pairs");
  const std::int64_t rows = x.size(0), n = x.size(1) / 2;
  const auto ordinal = x.get_device_index();
  Tensor y = empty_of(activation_of(x.scalar_type()).dtype, ordinal, rows, n);
  if (rows == 0) return y;
  void* const stream = current_stream(ordinal);
  const RowKind kind = kind_of(n, ordinal);
  const auto kernel = routing_kernel(
      ordinal, {kind.whole, static_cast<int>(scalar), static_cast<int>(*found)}, "gated", stream,
      [&] { return routing_kernels(gpus()).gated(scalar, *found, kind); });
  start<2>(kernel, grid_of_rows(n, rows), ordinal, stream,
           {{address(x), address(y)},
            {static_cast<std::uint32_t>(rows), pieces_of(n),
             std::bit_cast<std::uint32_t>(static_cast<float>(limit)),
             std::bit_cast<std::uint32_t>(static_cast<float>(alpha))}});
  return y;
}

Tensor combine(Tensor rows, Tensor places, Tensor weights) {
  const Scalar scalar = half_of(rows, "rows");
  require_matrix(rows, "rows");
  require_matrix(places, "places");
  require_matrix(weights, "weights");
  LADDER_REQUIRE(places.scalar_type() == ScalarType::Int, "places has dtype ",
                 name(places.scalar_type()), ", not int32");
  LADDER_REQUIRE(shape(places) == shape(weights), "weights of shape ", shape(weights),
                 " for places of shape ", shape(places));
  const bool f32 = weights.scalar_type() == ScalarType::Float;
  LADDER_REQUIRE(f32 || weights.scalar_type() == rows.scalar_type(), "weights has dtype ",
                 name(weights.scalar_type()), ", neither float32 nor that of rows, ",
                 name(rows.scalar_type()));
  const std::int64_t tokens = places.size(0), of_token = places.size(1), n = rows.size(1);
  const auto ordinal = rows.get_device_index();
  Tensor y = empty_of(activation_of(rows.scalar_type()).dtype, ordinal, tokens, n);
  if (tokens == 0) return y;
  void* const stream = current_stream(ordinal);
  const RowKind kind = kind_of(n, ordinal);
  const auto kernel = routing_kernel(
      ordinal, {kind.whole, static_cast<int>(scalar), f32}, "combine", stream,
      [&] { return routing_kernels(gpus()).combine(scalar, f32 ? Scalar::f32 : scalar, kind); });
  start<4>(
      kernel, grid_of_rows(n, tokens), ordinal, stream,
      {{address(rows), address(places), address(weights), address(y)},
       {static_cast<std::uint32_t>(tokens), static_cast<std::uint32_t>(of_token), pieces_of(n)}});
  return y;
}

/// As many as LinearKernel::start gives its kernel, for all items.
[[nodiscard]] bool launch(const LinearKernel& kernel, const Session& session, const Tensor& images,
                          const std::optional<Tensor>& bias, const Tensor& x, const Tensor& y,
                          const Tensor& items, std::int32_t ordinal, void* stream) {
  const ImageParts& parts = session.parts();
  const std::int64_t count = items.size(0);
  void* const first = address(images);
  std::array<void*, kOperands> pointers{};
  const auto pointer = [&](Operand operand) -> void*& {
    return pointers[static_cast<std::size_t>(operand)];
  };
  pointer(Operand::weight) = first;
  pointer(Operand::scales) = part_of(first, parts.scales);
  pointer(Operand::zeros) = part_of(first, parts.zeros);
  pointer(Operand::scale2) = part_of(first, parts.scale2);
  pointer(Operand::gather) = part_of(first, parts.gather);
  pointer(Operand::bias) = bias.has_value() ? address(*bias) : nullptr;
  pointer(Operand::x) = address(x);
  pointer(Operand::y) = address(y);
  pointer(Operand::items) = address(items);
  std::optional<Tensor> workspace;
  if (kernel.workspace.floats > 0) {
    workspace = empty_of(aoti_torch_dtype_float32(), ordinal, kernel.workspace.floats * count);
    pointer(Operand::workspace) = address(*workspace);
  }
  if (kernel.workspace.counters > 0) {
    pointer(Operand::counters) =
        take_counters(ordinal, counters_of_item(kernel.workspace.counters) * count, stream);
  }
  std::uint32_t tokens = 0;  // each item has its own
  std::array<void*, kOperands + 1> arguments;
  std::size_t given = 0;
  for (const Operand operand : kernel.operands) arguments[given++] = &pointer(operand);
  arguments[given] = &tokens;
  Launch grid = kernel.launch;
  grid.grid[2] = static_cast<unsigned>(count);
  return kernel.kernel->launch(grid, stream, arguments.data());
}

Tensor expert_linear(Tensor x, Tensor images, std::optional<Tensor> bias, Tensor items,
                     std::int64_t weight, std::int64_t n, std::int64_t of_item) {
  Session& session = ladder::session(weight);
  const Activation as = activation_of(x.scalar_type());
  half_of(x, "x");
  require_matrix(x, "x");
  require_matrix(images, "images");
  require_matrix(items, "items");
  const auto ordinal = x.get_device_index();
  const std::int64_t experts = images.size(0), rows = x.size(0), count = items.size(0);
  LADDER_REQUIRE(n == session.n(), "n is ", n, ", not ", session.n());
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
  const std::int64_t of_bias = round_up(n, kBiasOfExpert);
  if (bias.has_value()) {
    require_matrix(*bias, "bias");
    LADDER_REQUIRE(bias->size(0) == experts && bias->size(1) == of_bias &&
                       bias->scalar_type() == x.scalar_type() &&
                       bias->get_device_index() == ordinal,
                   "bias is ", shape(*bias), " of ", name(bias->scalar_type()), ", not [", experts,
                   ", ", of_bias, "] of ", name(x.scalar_type()), " on the device of x");
  }
  LADDER_REQUIRE(count <= kMostOfGrid, count, " items, of at most ", kMostOfGrid);
  Tensor y = empty_of(as.dtype, ordinal, rows, n);
  if (rows == 0 || count == 0) return y;
  const Tensor from = readable(x);
  void* const stream = current_stream(ordinal);
  ExpertProducts& products = expert_products(weight);
  const ExpertProducts::Question question{ordinal, as.scalar, experts, of_item, rows};
  const LinearKernel* kernel = products.kernel(question, stream);
  while (kernel != nullptr &&
         !launch(*kernel, session, images, bias, from, y, items, ordinal, stream)) {
    kernel = products.instead_of(*kernel, question, stream);
  }
  if (kernel == nullptr) {
    fail<Unsupported>("no kernel multiplies ", of_item, " rows by experts of ",
                      to_string(session.type()), " [", n, ", ", session.k(), "]");
  }
  return y;
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

/// The scheduler's first choices, one a line, for measuring.
std::string expert_schedules(std::int64_t weight, std::int64_t experts, std::int64_t rows,
                             std::int64_t of_item, ScalarType dtype, std::int64_t device,
                             std::int64_t count) {
  const auto found = expert_products(weight).schedules(
      {static_cast<int>(device), activation_of(dtype).scalar, experts, of_item, rows},
      static_cast<std::size_t>(count));
  std::string lines;
  for (const auto& schedule : found) lines += (lines.empty() ? "" : "\n") + schedule;
  return lines;
}

void use_expert_schedule(std::int64_t weight, std::int64_t experts, std::int64_t rows,
                         std::int64_t of_item, ScalarType dtype, std::int64_t device,
                         std::string schedule) {
  expert_products(weight).use(
      {static_cast<int>(device), activation_of(dtype).scalar, experts, of_item, rows}, schedule);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("route(Tensor x, Tensor experts, int count, int of_item) -> Tensor[]");
  m.def("gated(Tensor x, str activation, float limit, float alpha) -> Tensor");
  m.def("combine(Tensor rows, Tensor places, Tensor weights) -> Tensor");
  m.def(
      "expert_linear(Tensor x, Tensor images, Tensor? bias, Tensor items, int weight, int n, "
      "int of_item) -> Tensor");
  m.def(
      "expert_rows(int gate_up, int down, int experts, int rows, ScalarType dtype, int device) -> "
      "int");
  m.def(
      "expert_schedules(int weight, int experts, int rows, int of_item, ScalarType dtype, "
      "int device, int count) -> str");
  m.def(
      "use_expert_schedule(int weight, int experts, int rows, int of_item, ScalarType dtype, "
      "int device, str schedule) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("route", TORCH_BOX(&route));
  m.impl("gated", TORCH_BOX(&gated));
  m.impl("combine", TORCH_BOX(&combine));
  m.impl("expert_linear", TORCH_BOX(&expert_linear));
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("expert_rows", TORCH_BOX(&expert_rows));
  m.impl("expert_schedules", TORCH_BOX(&expert_schedules));
  m.impl("use_expert_schedule", TORCH_BOX(&use_expert_schedule));
}

}  // namespace ladder::binding
