// SPDX-License-Identifier: Apache-2.0
// What a layer of experts does around its products: rows in the order of their experts, gate and
// up, the sum of what a token's experts say.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/integers.h"
#include "binding/torch/cuda.h"
#include "codegen/target.h"
#include "runtime/device_row.h"
#include "runtime/expert_products.h"
#include "runtime/gpus.h"
#include "runtime/kernels.h"

namespace ladder::binding {

Scalar half_of(const Tensor& x, const char* argument) {
  const Scalar scalar = activation_of(x.scalar_type()).scalar;
  LADDER_REQUIRE(scalar != Scalar::f32, argument, " is float32, not float16 or bfloat16");
  return scalar;
}

void require_matrix(const Tensor& x, const char* argument) {
  LADDER_REQUIRE(x.dim() == 2 && x.is_contiguous() && x.is_cuda(), argument, " of shape ", shape(x),
                 " is no contiguous matrix on a GPU");
}

void require_rounded_rows(const Tensor& codes, const Tensor& scales) {
  require_matrix(codes, "codes");
  LADDER_REQUIRE(codes.scalar_type() == ScalarType::Byte && codes.size(1) % kColumnsOfBytes == 0,
                 "codes are ", shape(codes), " of ", name(codes.scalar_type()),
                 ", not uint8 of a multiple of ", kColumnsOfBytes, " columns");
  LADDER_REQUIRE(scales.scalar_type() == ScalarType::Float && scales.numel() == codes.size(0) &&
                     scales.is_contiguous() && scales.is_cuda() &&
                     scales.get_device_index() == codes.get_device_index(),
                 "scales are ", shape(scales), " of ", name(scales.scalar_type()), ", not [",
                 codes.size(0), "] of float32 on the device of codes");
}

namespace {

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

/// What route() makes of rows, the scales where they have such.
struct Routed {
  Tensor rows;
  std::optional<Tensor> scales;
  Tensor items, places;
};

/// Of rows of `of_row` numbers of 16 bits. `scales`: of each row.
Routed routed(const Tensor& x, const std::optional<Tensor>& scales, const Tensor& experts,
              std::int64_t count, std::int64_t of_item, std::int32_t dtype, std::int64_t of_row) {
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
  Tensor rows = empty_of(dtype, ordinal, choices, k);
  std::optional<Tensor> row_scales;
  if (scales) row_scales = empty_of(aoti_torch_dtype_float32(), ordinal, choices);
  Tensor items = empty_of(aoti_torch_dtype_int32(), ordinal, slots, kItemWords);
  Tensor places = empty_of(aoti_torch_dtype_int32(), ordinal, tokens, of_token);
  if (choices > 0) {
    void* const stream = current_stream(ordinal);
    RowKind kind = kind_of(of_row, ordinal);
    kind.scaled = scales.has_value();
    const auto kernel = routing_kernel(ordinal, {kind.whole, kind.scaled, 0}, "route", stream,
                                       [&] { return routing_kernels(gpus()).route(kind); });
    const std::int64_t fill = 2 * std::int64_t{device_row(ordinal).multiprocessors};
    const auto blocks = std::max(std::min(choices, fill), ceil_div(choices, kMostChoicesOfBlock));
    const auto number = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
    const std::array numbers{number(choices), number(of_token),  std::uint32_t{wide}, number(count),
                             number(of_item), pieces_of(of_row), number(slots)};
    const std::array<unsigned, 3> grid{number(blocks), 1, 1};
    if (scales) {
      start<7>(kernel, grid, ordinal, stream,
               {{address(experts), address(from), address(rows), address(*scales),
                 address(*row_scales), address(items), address(places)},
                numbers});
    } else {
      start<5>(kernel, grid, ordinal, stream,
               {{address(experts), address(from), address(rows), address(items), address(places)},
                numbers});
    }
  }
  return {rows, row_scales, items, places};
}

std::vector<Tensor> route(Tensor x, Tensor experts, std::int64_t count, std::int64_t of_item) {
  half_of(x, "x");
  const auto dtype = activation_of(x.scalar_type()).dtype;
  const Routed out = routed(x, std::nullopt, experts, count, of_item, dtype, x.size(1));
  return {out.rows, out.items, out.places};
}

/// The same of rounded_codes(), which are whole pieces.
std::vector<Tensor> route_rounded(Tensor codes, Tensor scales, Tensor experts, std::int64_t count,
                                  std::int64_t of_item) {
  require_rounded_rows(codes, scales);
  const Routed out =
      routed(codes, scales, experts, count, of_item, aoti_torch_dtype_uint8(), codes.size(1) / 2);
  return {out.rows, *out.scales, out.items, out.places};
}

/// y [rows, n / 2] of gate and up side by side, or of eight columns of each in turn.
Tensor gated(Tensor x, std::string what, double limit, double alpha, bool alternating) {
  const Scalar scalar = half_of(x, "x");
  require_matrix(x, "x");
  const auto found = gated_called(what);
  LADDER_REQUIRE(found.has_value(), "activation is ", what, ", which no kernel has");
  LADDER_REQUIRE(x.size(1) % 2 == 0, "x has ", x.size(1), " columns, which are no pairs");
  LADDER_REQUIRE(!alternating || x.size(1) % (2 * kGateRows) == 0, "x has ", x.size(1),
                 " columns, not eight of the gate and eight of up in turn");
  const std::int64_t rows = x.size(0), n = x.size(1) / 2;
  const auto ordinal = x.get_device_index();
  Tensor y = empty_of(activation_of(x.scalar_type()).dtype, ordinal, rows, n);
  if (rows == 0) return y;
  void* const stream = current_stream(ordinal);
  RowKind kind = kind_of(n, ordinal);
  kind.alternating = alternating;
  const auto kernel = routing_kernel(
      ordinal, {kind.whole + 2 * alternating, static_cast<int>(scalar), static_cast<int>(*found)},
      "gated", stream, [&] { return routing_kernels(gpus()).gated(scalar, *found, kind); });
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

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("route(Tensor x, Tensor experts, int count, int of_item) -> Tensor[]");
  m.def(
      "route_rounded(Tensor codes, Tensor scales, Tensor experts, int count, int of_item) -> "
      "Tensor[]");
  m.def(
      "gated(Tensor x, str activation, float limit, float alpha, bool alternating=False) -> "
      "Tensor");
  m.def("combine(Tensor rows, Tensor places, Tensor weights) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CUDA, m) {
  m.impl("route", TORCH_BOX(&route));
  m.impl("route_rounded", TORCH_BOX(&route_rounded));
  m.impl("gated", TORCH_BOX(&gated));
  m.impl("combine", TORCH_BOX(&combine));
}

}  // namespace ladder::binding
