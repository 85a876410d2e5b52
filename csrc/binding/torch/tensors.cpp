// SPDX-License-Identifier: Apache-2.0
#include "binding/torch/tensors.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "base/error.h"

namespace ladder::binding {

namespace {

std::vector<std::int64_t> extents_of(const Tensor& tensor) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) out.push_back(tensor.size(d));
  return out;
}

}  // namespace

std::string shape(std::span<const std::int64_t> extents) {
  std::string text = "[";
  for (std::size_t d = 0; d < extents.size(); ++d)
    text += (d > 0 ? ", " : "") + std::to_string(extents[d]);
  return text + "]";
}

std::string shape(const Tensor& tensor) { return shape(extents_of(tensor)); }

void require_like_y(const Tensor& residual, std::span<const std::int64_t> y, ScalarType dtype) {
  bool alike = residual.dim() == static_cast<std::int64_t>(y.size());
  for (std::size_t d = 0; alike && d < y.size(); ++d)
    alike = residual.size(static_cast<std::int64_t>(d)) == y[d];
  LADDER_REQUIRE(alike, "residual has shape ", shape(residual), ", and y ", shape(y));
  LADDER_REQUIRE(residual.scalar_type() == dtype, "residual has dtype ",
                 name(residual.scalar_type()), ", and y ", name(dtype));
}

namespace {

/// Checks one optional part: present exactly when wanted, then dtype and shape.
const void* part(const std::optional<Tensor>& tensor, std::string_view argument, bool wanted,
                 const TType& type, ScalarType dtype, std::int64_t rows, std::int64_t columns) {
  LADDER_REQUIRE(tensor.has_value() == wanted, argument, " is ", wanted ? "missing" : "given",
                 ", but type \"", to_string(type), "\" ", wanted ? "needs it" : "has none");
  if (!wanted) return nullptr;
  require(*tensor, argument, dtype, 2);
  LADDER_REQUIRE(tensor->size(0) == rows && tensor->size(1) == columns, argument, " has shape ",
                 shape(*tensor), ", not [", rows, ", ", columns, "] as type \"", to_string(type),
                 "\" needs");
  return tensor->const_data_ptr();
}

}  // namespace

namespace {

/// The same of a second scale of the tensor or of rows.
const float* scale_of_sums(const std::optional<Tensor>& scale2, const TType& type, std::int64_t n) {
  const bool wanted = type.scale2 != nullptr;
  LADDER_REQUIRE(scale2.has_value() == wanted, "scale2 is ", wanted ? "missing" : "given",
                 ", but type \"", to_string(type), "\" ", wanted ? "needs it" : "has none");
  if (!wanted) return nullptr;
  require(*scale2, "scale2", ScalarType::Float, 1);
  const std::int64_t count = second_scales(type, n);
  LADDER_REQUIRE(scale2->size(0) == count, "scale2 has ", scale2->size(0), " numbers, not ", count,
                 " as type \"", to_string(type), "\" needs");
  return static_cast<const float*>(scale2->const_data_ptr());
}

}  // namespace

void torch_parallel(std::int64_t count, std::int64_t grain, const RangeBody& body) {
  if (count <= 0) return;
  // torch's shim would turn what a thread throws into a RuntimeError without a type.
  std::exception_ptr thrown;
  std::mutex mutex;
  const auto guarded = [&](std::int64_t begin, std::int64_t end) {
    try {
      body(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!thrown) thrown = std::current_exception();
    }
  };
  const auto call = [](std::int64_t begin, std::int64_t end, void* context) {
    (*static_cast<decltype(guarded)*>(context))(begin, end);
  };
  STABLE_TORCH_ERROR_CODE_CHECK(torch_parallel_for(
      0, count, grain, call, const_cast<void*>(static_cast<const void*>(&guarded))));
  if (thrown) std::rethrow_exception(thrown);
}

namespace {

struct Dtype {
  ScalarType dtype;
  std::string_view name;  ///< torch's
  std::optional<Scalar> scalar = std::nullopt;
};
constexpr Dtype kDtypes[] = {
    {ScalarType::Byte, "uint8", Scalar::u8},
    {ScalarType::Char, "int8", Scalar::s8},
    {ScalarType::Short, "int16"},
    {ScalarType::Int, "int32", Scalar::s32},
    {ScalarType::Long, "int64"},
    {ScalarType::Half, "float16", Scalar::f16},
    {ScalarType::BFloat16, "bfloat16", Scalar::bf16},
    {ScalarType::Float, "float32", Scalar::f32},
    {ScalarType::Double, "float64"},
    {ScalarType::Bool, "bool"},
    {ScalarType::Float8E4M3, "float8_e4m3fn", Scalar::e4m3},
    {ScalarType::Complex32, "complex32"},
    {ScalarType::Complex64, "complex64"},
    {ScalarType::Complex128, "complex128"},
    {ScalarType::UInt16, "uint16"},
    {ScalarType::UInt32, "uint32"},
    {ScalarType::UInt64, "uint64"},
    {ScalarType::Float8E5M2, "float8_e5m2"},
    {ScalarType::Float8E4M3Fnuz, "float8_e4m3fnuz"},
    {ScalarType::Float8E5M2Fnuz, "float8_e5m2fnuz"},
};

const Dtype* row_of(ScalarType dtype) {
  const auto* const row = std::ranges::find(kDtypes, dtype, &Dtype::dtype);
  return row == std::end(kDtypes) ? nullptr : row;
}

}  // namespace

std::string_view name(ScalarType dtype) {
  const Dtype* row = row_of(dtype);
  return row != nullptr ? row->name : "unknown to ladder";
}

std::optional<Scalar> scalar_of(ScalarType dtype) {
  const Dtype* row = row_of(dtype);
  return row != nullptr ? row->scalar : std::nullopt;
}

ScalarType dtype_of(Scalar scalar) {
  const auto* const row = std::ranges::find(kDtypes, std::optional(scalar), &Dtype::scalar);
  LADDER_CHECK(row != std::end(kDtypes), name_of(scalar), " is no dtype of torch");
  return row->dtype;
}

void require(const Tensor& tensor, std::string_view argument, ScalarType dtype, int dimensions) {
  LADDER_REQUIRE(tensor.is_cpu(), argument, " is not on the cpu, and the other tensors are");
  LADDER_REQUIRE(tensor.scalar_type() == dtype, argument, " has dtype ", name(tensor.scalar_type()),
                 ", not ", name(dtype));
  LADDER_REQUIRE(tensor.dim() == dimensions, argument, " has shape ", shape(tensor), ", not ",
                 dimensions, " dimensions");
  LADDER_REQUIRE(tensor.is_contiguous(), argument, " of shape ", shape(tensor),
                 " is not contiguous");
}

ScalarType storage_dtype(const Element& format) {
  const auto scalar = scalar_of(format);
  return scalar && bits_of(*scalar) > 8 ? dtype_of(*scalar) : ScalarType::Byte;
}

WeightView view_weight(const WeightArguments& arguments, const TType& type, std::int64_t k) {
  const Tensor& qweight = arguments.qweight;
  require(qweight, "qweight", ScalarType::Int, 2);
  const std::int64_t n = qweight.size(0);
  const int bits = type.element->bits;
  LADDER_REQUIRE(qweight.size(1) == row_words(k, bits), "qweight has ", qweight.size(1),
                 " words a row; ", k, " columns of ", type.element->name, " need ",
                 row_words(k, bits));
  const std::int64_t rows = type.block_rows(n), groups = type.groups(k);
  WeightView view{.type = &type, .n = n, .k = k};
  view.codes = static_cast<const std::uint32_t*>(qweight.const_data_ptr());
  const bool scaled = type.scale != nullptr;
  view.scales = part(arguments.scales, "scales", scaled, type,
                     scaled ? storage_dtype(*type.scale) : ScalarType::Float, rows, groups);
  switch (type.zero) {
    case Zero::none:
    case Zero::midpoint:
      view.zeros = part(arguments.zeros, "zeros", false, type, ScalarType::Byte, rows, groups);
      break;
    case Zero::integer:
      view.zeros = part(arguments.zeros, "zeros", true, type, ScalarType::Byte, rows, groups);
      break;
    case Zero::quantized:
      view.zeros = part(arguments.zeros, "zeros", true, type, ScalarType::Int, rows,
                        row_words(groups, bits));
      break;
    case Zero::original:
    case Zero::rescale:
      view.zeros =
          part(arguments.zeros, "zeros", true, type, storage_dtype(*type.scale), rows, groups);
      break;
  }
  if (type.superblock > 0) {
    view.seconds = part(arguments.scale2, "scale2", true, type, storage_dtype(*type.scale2), n,
                        type.second_scales_of_row(k));
  } else {
    view.scale2 = scale_of_sums(arguments.scale2, type, n);
  }
  if (arguments.g_idx.has_value()) {
    require(*arguments.g_idx, "g_idx", ScalarType::Int, 1);
    LADDER_REQUIRE(arguments.g_idx->size(0) == k, "g_idx has ", arguments.g_idx->size(0),
                   " entries, not one for each of ", k, " columns");
    view.g_idx = static_cast<const std::int32_t*>(arguments.g_idx->const_data_ptr());
  }
  return view;
}

void check_g_idx(const WeightView& weight) {
  if (weight.g_idx == nullptr) return;
  const std::int64_t groups = weight.type->groups(weight.k);
  for (std::int64_t column = 0; column < weight.k; ++column)
    LADDER_REQUIRE(weight.g_idx[column] >= 0 && weight.g_idx[column] < groups, "g_idx[", column,
                   "] is ", weight.g_idx[column], ", not one of ", groups, " groups");
}

Scalar float_kind(ScalarType dtype, std::string_view argument) {
  const auto scalar = scalar_of(dtype);
  LADDER_REQUIRE(scalar == Scalar::f32 || scalar == Scalar::f16 || scalar == Scalar::bf16, argument,
                 " has dtype ", name(dtype), ", not float32, float16 or bfloat16");
  return *scalar;
}

}  // namespace ladder::binding
