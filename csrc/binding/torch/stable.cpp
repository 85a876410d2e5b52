// SPDX-License-Identifier: Apache-2.0
#include "binding/torch/stable.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace ladder::stable {
namespace {

struct Dtype {
  ScalarType type;
  std::int32_t number;
};

/// In the order in which calls ask for them most often.
const std::array<Dtype, 20>& dtypes() {
  static const std::array<Dtype, 20> rows{{
      {ScalarType::Half, aoti_torch_dtype_float16()},
      {ScalarType::BFloat16, aoti_torch_dtype_bfloat16()},
      {ScalarType::Float, aoti_torch_dtype_float32()},
      {ScalarType::Int, aoti_torch_dtype_int32()},
      {ScalarType::Byte, aoti_torch_dtype_uint8()},
      {ScalarType::Char, aoti_torch_dtype_int8()},
      {ScalarType::Short, aoti_torch_dtype_int16()},
      {ScalarType::Long, aoti_torch_dtype_int64()},
      {ScalarType::Double, aoti_torch_dtype_float64()},
      {ScalarType::Bool, aoti_torch_dtype_bool()},
      {ScalarType::Float8E4M3, aoti_torch_dtype_float8_e4m3fn()},
      {ScalarType::Complex32, aoti_torch_dtype_complex32()},
      {ScalarType::Complex64, aoti_torch_dtype_complex64()},
      {ScalarType::Complex128, aoti_torch_dtype_complex128()},
      {ScalarType::UInt16, aoti_torch_dtype_uint16()},
      {ScalarType::UInt32, aoti_torch_dtype_uint32()},
      {ScalarType::UInt64, aoti_torch_dtype_uint64()},
      {ScalarType::Float8E5M2, aoti_torch_dtype_float8_e5m2()},
      {ScalarType::Float8E4M3Fnuz, aoti_torch_dtype_float8_e4m3fnuz()},
      {ScalarType::Float8E5M2Fnuz, aoti_torch_dtype_float8_e5m2fnuz()},
  }};
  return rows;
}

constexpr std::size_t kMaxDimensions = 64;  // of torch's tensors

thread_local std::string refusal;

}  // namespace

void note_refusal(const char* text) { refusal = text; }
std::string take_refusal() { return std::exchange(refusal, {}); }

void fail_call(const char* call) {
  const std::string_view written = call;
  std::string text(written.substr(0, written.find('(')));
  if (torch_exception_get_what_without_backtrace != nullptr) {
    text = torch_exception_get_what_without_backtrace() + (" (from " + text + ")");
  } else {
    text += " failed; torch wrote why to stderr";
  }
  throw std::runtime_error(text);
}

std::int32_t number_of(ScalarType dtype) {
  const auto row = std::ranges::find(dtypes(), dtype, &Dtype::type);
  LADDER_CHECK(row != dtypes().end(), "no number of torch's for a dtype that ladder does not know");
  return row->number;
}

ScalarType scalar_type_of(std::int32_t number) {
  const auto row = std::ranges::find(dtypes(), number, &Dtype::number);
  return row == dtypes().end() ? ScalarType::Other : row->type;
}

Tensor empty(std::span<const std::int64_t> shape, std::int32_t dtype, std::int32_t device_type,
             std::int32_t device_index) {
  LADDER_CHECK(shape.size() <= kMaxDimensions, "a tensor of ", shape.size(), " dimensions");
  std::array<std::int64_t, kMaxDimensions> strides;
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
  }
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<std::int64_t>(shape.size()),
                                                         shape.data(), strides.data(), dtype,
                                                         device_type, device_index, &handle));
  return Tensor(handle);
}

Tensor empty(std::initializer_list<std::int64_t> shape, ScalarType dtype) {
  return empty(std::span(shape.begin(), shape.size()), number_of(dtype),
               aoti_torch_device_type_cpu(), -1);
}

Tensor new_empty(const Tensor& like, std::span<const std::int64_t> shape,
                 std::optional<ScalarType> dtype) {
  return empty(shape, dtype.has_value() ? number_of(*dtype) : like.dtype_number(),
               like.device_type(), like.get_device_index());
}

Tensor new_empty(const Tensor& like, std::initializer_list<std::int64_t> shape, ScalarType dtype) {
  return new_empty(like, std::span(shape.begin(), shape.size()), dtype);
}

Tensor contiguous(const Tensor& tensor) {
  return call("aten::contiguous", "",
              std::array{from(tensor), from(aoti_torch_memory_format_contiguous_format())});
}

Tensor clone(const Tensor& tensor) {
  return call("aten::clone", "", std::array{from(tensor), StableIValue{0}});
}

Tensor from_blob(float* data, std::array<std::int64_t, 2> shape,
                 std::array<std::int64_t, 2> strides) {
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob_v2(
      data, 2, shape.data(), strides.data(), 0, aoti_torch_dtype_float32(),
      aoti_torch_device_type_cpu(), -1, &handle, aoti_torch_layout_strided(), nullptr, 0));
  return Tensor(handle);
}

StableIValue Value<std::string>::from(const std::string& text) {
  StringHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_new_string_handle(text.data(), text.size(), &handle));
  return Value<StringHandle>::from(handle);
}

std::string Value<std::string>::to(StableIValue value) {
  const auto handle = Value<StringHandle>::to(value);
  const char* data = nullptr;
  std::size_t length = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  std::string text(data, length);
  STABLE_TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
  return text;
}

void check_counts(std::uint64_t arguments, std::uint64_t takes, std::uint64_t results,
                  std::uint64_t gives) {
  LADDER_CHECK(arguments == takes && results == gives, "an op's schema has ", arguments,
               " arguments and ", results, " results, its kernel ", takes, " and ", gives);
}

Library::Library(const char* name, const char* key, void (*fill)(Library&), const char* file,
                 int line) {
  const auto at = static_cast<std::uint32_t>(line);
  if (key == nullptr) {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_init_fragment(name, file, at, &handle_));
  } else {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_init_impl(name, key, file, at, &handle_));
  }
  fill(*this);
}

}  // namespace ladder::stable
