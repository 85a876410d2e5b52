// SPDX-License-Identifier: Apache-2.0
// What ladder needs of torch's stable API, over the C functions of shim.h: tensors, values of ops,
// and the registration of ops. Names and meanings are those of torch's own header-only library.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "binding/torch/shim.h"

namespace ladder::stable {

/// The oldest torch that has all of shim.h. Torch reads stacks as its version of then laid them.
constexpr std::uint64_t kAbiVersion = 0x020b'0000'0000'0000;

/// Throws std::runtime_error with torch's text, where torch gives it, and the name of the function.
[[noreturn]] void fail_call(const char* call);

#define STABLE_TORCH_ERROR_CODE_CHECK(call) \
  do {                                      \
    if ((call) != 0) [[unlikely]]           \
      ::ladder::stable::fail_call(#call);   \
  } while (false)

/// Torch's dtypes that ladder tells apart.
enum class ScalarType {
  Byte,
  Char,
  Short,
  Int,
  Long,
  Half,
  BFloat16,
  Float,
  Double,
  Bool,
  Float8E4M3,
  // Refused by their names.
  Complex32,
  Complex64,
  Complex128,
  UInt16,
  UInt32,
  UInt64,
  Float8E5M2,
  Float8E4M3Fnuz,
  Float8E5M2Fnuz,
  Other,
};
std::int32_t number_of(ScalarType dtype);  ///< torch's number of it; not of Other
ScalarType scalar_type_of(std::int32_t number);

/// Owns a handle of a tensor; a copy is another handle of the same tensor. Null once moved from.
class Tensor {
 public:
  explicit Tensor(AtenTensorHandle owned) : handle_(owned) {}
  Tensor(const Tensor& other) : handle_(other.new_handle()) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle new_handle() const { return ask(&aoti_torch_new_tensor_handle); }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  std::int64_t dim() const { return ask(&aoti_torch_get_dim); }
  std::int64_t numel() const { return ask(&aoti_torch_get_numel); }
  std::int64_t size(std::int64_t dimension) const {
    std::int64_t result;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_size(handle_, dimension, &result));
    return result;
  }
  std::int32_t dtype_number() const { return ask(&aoti_torch_get_dtype); }
  ScalarType scalar_type() const { return scalar_type_of(dtype_number()); }
  std::int32_t device_type() const { return ask(&aoti_torch_get_device_type); }
  std::int32_t get_device_index() const { return ask(&aoti_torch_get_device_index); }
  bool is_cpu() const { return device_type() == aoti_torch_device_type_cpu(); }
  bool is_cuda() const { return device_type() == aoti_torch_device_type_cuda(); }
  bool is_contiguous() const { return ask(&aoti_torch_is_contiguous); }
  const void* const_data_ptr() const { return ask(&torch_get_const_data_ptr); }
  void* mutable_data_ptr() const { return ask(&torch_get_mutable_data_ptr); }

 private:
  template <class Result>
  Result ask(AOTITorchError (*getter)(AtenTensorHandle, Result*)) const {
    Result result;
    STABLE_TORCH_ERROR_CODE_CHECK(getter(handle_, &result));
    return result;
  }

  AtenTensorHandle handle_;
};

/// Uninitialised and contiguous. Numbers are torch's; `device_index` is -1 for the CPU.
Tensor empty(std::span<const std::int64_t> shape, std::int32_t dtype, std::int32_t device_type,
             std::int32_t device_index);
/// On the CPU.
Tensor empty(std::initializer_list<std::int64_t> shape, ScalarType dtype);
/// On the device of `like`.
Tensor new_empty(const Tensor& like, std::span<const std::int64_t> shape,
                 std::optional<ScalarType> dtype = std::nullopt);
Tensor new_empty(const Tensor& like, std::initializer_list<std::int64_t> shape, ScalarType dtype);
Tensor contiguous(const Tensor& tensor);
Tensor clone(const Tensor& tensor);
/// A view of float32 numbers on the CPU, which outlive it.
Tensor from_blob(float* data, std::array<std::int64_t, 2> shape,
                 std::array<std::int64_t, 2> strides);

// --- values on the stack of an op
// -----------------------------------------------------------------

/// A number, or an address: its bytes. `from` gives the stack what it owns, `to` takes it back.
template <class T>
struct Value {
  static_assert(std::is_arithmetic_v<T> || std::is_pointer_v<T>);
  static_assert(std::endian::native == std::endian::little);
  static StableIValue from(T value) {
    StableIValue bytes = 0;
    std::memcpy(&bytes, &value, sizeof(value));
    return bytes;
  }
  static T to(StableIValue bytes) {
    T value;
    std::memcpy(&value, &bytes, sizeof(value));
    return value;
  }
};

template <>
struct Value<ScalarType> {
  static StableIValue from(ScalarType dtype) { return Value<std::int32_t>::from(number_of(dtype)); }
  static ScalarType to(StableIValue value) {
    return scalar_type_of(Value<std::int32_t>::to(value));
  }
};

template <>
struct Value<Tensor> {
  static StableIValue from(Tensor tensor) {
    return Value<AtenTensorHandle>::from(tensor.release());
  }
  static Tensor to(StableIValue value) { return Tensor(Value<AtenTensorHandle>::to(value)); }
};

template <>
struct Value<std::string> {
  static StableIValue from(const std::string& text);
  static std::string to(StableIValue value);
};

/// Null, or the address of a value made by operator new.
template <class T>
struct Value<std::optional<T>> {
  static StableIValue from(std::optional<T> value) {
    if (!value.has_value()) return 0;
    return Value<StableIValue*>::from(new StableIValue(Value<T>::from(*std::move(value))));
  }
  static std::optional<T> to(StableIValue value) {
    const std::unique_ptr<StableIValue> inner(Value<StableIValue*>::to(value));
    if (inner == nullptr) return std::nullopt;
    return Value<T>::to(*inner);
  }
};

template <class T>
struct Value<std::vector<T>> {
  static StableIValue from(std::vector<T> values) {
    StableListHandle list = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(torch_new_list_reserve_size(values.size(), &list));
    for (T& value : values) {
      STABLE_TORCH_ERROR_CODE_CHECK(torch_list_push_back(list, Value<T>::from(std::move(value))));
    }
    return Value<StableListHandle>::from(list);
  }
  static std::vector<T> to(StableIValue value) {
    const auto list = Value<StableListHandle>::to(value);
    std::size_t size = 0;
    STABLE_TORCH_ERROR_CODE_CHECK(torch_list_size(list, &size));
    std::vector<T> values;
    for (std::size_t i = 0; i < size; ++i) {
      StableIValue element;
      STABLE_TORCH_ERROR_CODE_CHECK(torch_list_get_item(list, i, &element));
      values.push_back(Value<T>::to(element));
    }
    STABLE_TORCH_ERROR_CODE_CHECK(torch_delete_list(list));
    return values;
  }
};

template <class T>
StableIValue from(T&& value) {
  return Value<std::remove_cvref_t<T>>::from(std::forward<T>(value));
}
template <class T>
T to(StableIValue value) {
  return Value<T>::to(value);
}

/// Calls the op with these arguments and returns the one tensor that it returns.
template <std::size_t Count>
Tensor call(const char* op, const char* overload, std::array<StableIValue, Count> stack) {
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, overload, stack.data(), kAbiVersion));
  return to<Tensor>(stack[0]);
}

// --- ops
// ------------------------------------------------------------------------------------------

void check_counts(std::uint64_t arguments, std::uint64_t takes, std::uint64_t results,
                  std::uint64_t gives);

/// Notes, for take_refusal() of this thread, that an op throws InvalidArgument: from 2.15 on torch
/// makes a RuntimeError of it.
void note_refusal(const char* text);
std::string take_refusal();  ///< and forgets it; "" if there is none

/// `Function` as torch calls it: arguments taken off the stack, the result put there.
template <auto Function, class Result, class... Parameters>
void boxed(StableIValue* stack, std::uint64_t arguments, std::uint64_t results) {
  constexpr bool kGives = !std::is_void_v<Result>;
  check_counts(arguments, sizeof...(Parameters), results, kGives ? 1 : 0);
  auto values = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple{to<std::remove_cvref_t<Parameters>>(stack[I])...};
  }
  (std::index_sequence_for<Parameters...>());
  try {
    if constexpr (kGives) {
      stack[0] = from(std::apply(Function, std::move(values)));
    } else {
      std::apply(Function, std::move(values));
    }
  } catch (const InvalidArgument& error) {
    note_refusal(error.what());
    throw;
  }
}

using Boxed = void (*)(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
template <auto Function>
struct Boxer;
template <class Result, class... Parameters, Result (*Function)(Parameters...)>
struct Boxer<Function> {
  static constexpr Boxed kBoxed = &boxed<Function, Result, Parameters...>;
};

/// Registers when constructed, for as long as it lives.
class Library {
 public:
  /// Schemas with a null `key`; else kernels for that dispatch key.
  Library(const char* name, const char* key, void (*fill)(Library&), const char* file, int line);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { aoti_torch_delete_library_object(handle_); }

  void def(const char* schema) {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_def(handle_, schema));
  }
  void impl(const char* name, Boxed function) {
    STABLE_TORCH_ERROR_CODE_CHECK(torch_library_impl(handle_, name, function, kAbiVersion));
  }

 private:
  TorchLibraryHandle handle_ = nullptr;
};

#define TORCH_BOX(function) ::ladder::stable::Boxer<(function)>::kBoxed

/// Followed by the body of a function of `m`. One of each, for each key, in a file.
#define STABLE_TORCH_LIBRARY_FRAGMENT(name, m)                                                 \
  static void schemas_of_##name(::ladder::stable::Library& m);                                 \
  static const ::ladder::stable::Library library_of_##name(#name, nullptr, &schemas_of_##name, \
                                                           __FILE__, __LINE__);                \
  static void schemas_of_##name(::ladder::stable::Library& m)

#define STABLE_TORCH_LIBRARY_IMPL(name, key, m)                        \
  static void kernels_of_##name##_##key(::ladder::stable::Library& m); \
  static const ::ladder::stable::Library library_of_##name##_##key(    \
      #name, #key, &kernels_of_##name##_##key, __FILE__, __LINE__);    \
  static void kernels_of_##name##_##key(::ladder::stable::Library& m)

}  // namespace ladder::stable
