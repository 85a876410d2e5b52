// SPDX-License-Identifier: Apache-2.0
// Values of C++ as objects of Python, over the limited API of Python 3.10 alone: one binary loads
// in every Python from 3.10 on, which pybind11's cannot.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ladder::python {

/// An object that is not what a parameter takes. Python: TypeError.
struct Mismatch final : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Python has set its error already.
struct Raised final {};

/// Sets Python's error to what is being handled: ValueError for InvalidArgument,
/// NotImplementedError for Unsupported, RuntimeError for what has no class of its own.
void set_error();
[[noreturn]] void mismatch(PyObject* object, std::string_view expected);

/// A reference that is owned, or null.
class Object {
 public:
  Object() = default;
  /// Takes what a function of Python returned; throws Raised for null.
  explicit Object(PyObject* owned) : object_(owned) {
    if (owned == nullptr) throw Raised();
  }
  Object(Object&& other) noexcept : object_(other.release()) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

/// Throws Raised where a function of Python returned -1.
inline void check(int status) {
  if (status < 0) throw Raised();
}

/// Python's other threads run while it lives.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

/// The class of Python whose instances hold a T, or the enumeration whose values T's are.
template <class T>
inline PyObject* type_of = nullptr;

template <class T>
struct Instance {
  PyObject_HEAD alignas(T) std::byte bytes[sizeof(T)];
  T& value() { return *std::launder(reinterpret_cast<T*>(bytes)); }
};

// --- C++ to Python
// --------------------------------------------------------------------------------

template <class T>
Object give(T value);

template <class T>
struct Giver {  // instances of a class
  static Object give(T value) {
    Object self(PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type_of<T>), 0));
    new (reinterpret_cast<Instance<T>*>(self.get())->bytes) T(std::move(value));
    return self;
  }
};
template <class T>
requires std::is_enum_v<T>
struct Giver<T> {
  static Object give(T value) {
    return Object(PyObject_CallFunction(type_of<T>, "i", static_cast<int>(value)));
  }
};
template <>
struct Giver<bool> {
  static Object give(bool value) { return Object(PyBool_FromLong(value)); }
};
template <class T>
requires std::is_integral_v<T>
struct Giver<T> {
  static Object give(T value) {
    if constexpr (std::is_signed_v<T>) return Object(PyLong_FromLongLong(value));
    return Object(PyLong_FromUnsignedLongLong(static_cast<unsigned long long>(value)));
  }
};
template <>
struct Giver<double> {
  static Object give(double value) { return Object(PyFloat_FromDouble(value)); }
};
template <class T>
requires std::is_convertible_v<T, std::string_view>
struct Giver<T> {
  static Object give(std::string_view text) {
    return Object(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
  }
};
template <class T>
struct Giver<std::vector<T>> {
  static Object give(std::vector<T> values) {
    Object list(PyList_New(0));
    for (T& value : values) check(PyList_Append(list.get(), python::give(std::move(value)).get()));
    return list;
  }
};
template <class K, class V>
struct Giver<std::map<K, V>> {
  static Object give(std::map<K, V> values) {
    Object dict(PyDict_New());
    for (auto& [key, value] : values) {
      check(PyDict_SetItem(dict.get(), python::give(key).get(), python::give(value).get()));
    }
    return dict;
  }
};
template <class T>
requires requires { std::tuple_size<T>::value; }
struct Giver<T> {
  static Object give(T values) {
    return std::apply(
        [](auto&... value) {
          const std::array<Object, sizeof...(value)> items{python::give(std::move(value))...};
          Object tuple(PyTuple_New(sizeof...(value)));
          Py_ssize_t i = 0;
          for (const Object& item : items) {
            Py_INCREF(item.get());  // which PyTuple_SetItem takes
            check(PyTuple_SetItem(tuple.get(), i++, item.get()));
          }
          return tuple;
        },
        values);
  }
};

template <class T>
Object give(T value) {
  return Giver<T>::give(std::move(value));
}

// --- Python to C++
// --------------------------------------------------------------------------------

/// A `T` of the object: a reference into it for classes, a value for others. Throws Mismatch.
template <class T>
struct Taker {  // instances of a class
  static T& take(PyObject* object) {
    auto* const type = reinterpret_cast<PyTypeObject*>(type_of<T>);
    if (PyObject_TypeCheck(object, type) == 0) {
      const Object name(PyObject_GetAttrString(type_of<T>, "__name__"));
      mismatch(object, PyUnicode_AsUTF8AndSize(name.get(), nullptr));
    }
    return reinterpret_cast<Instance<T>*>(object)->value();
  }
};
template <class T>
decltype(auto) take(PyObject* object) {
  return Taker<T>::take(object);
}

template <class T>
requires std::is_enum_v<T>
struct Taker<T> {
  static T take(PyObject* object) {
    if (PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type_of<T>)) == 0) {
      mismatch(object, "a member of its enumeration");
    }
    const Object value(PyObject_GetAttrString(object, "value"));
    return static_cast<T>(PyLong_AsLong(value.get()));
  }
};
template <>
struct Taker<bool> {
  static bool take(PyObject* object) {
    if (PyBool_Check(object) == 0) mismatch(object, "bool");
    return object == Py_True;
  }
};
std::int64_t take_integer(PyObject* object, std::int64_t low, std::int64_t high);
std::uint64_t take_unsigned(PyObject* object);
template <class T>
requires std::is_integral_v<T>
struct Taker<T> {
  static T take(PyObject* object) {
    if constexpr (sizeof(T) == 8 && std::is_unsigned_v<T>) return take_unsigned(object);
    using Limits = std::numeric_limits<T>;
    return static_cast<T>(take_integer(object, static_cast<std::int64_t>(Limits::min()),
                                       static_cast<std::int64_t>(Limits::max())));
  }
};
template <>
struct Taker<double> {
  static double take(PyObject* object);
};
template <>
struct Taker<std::string> {
  static std::string take(PyObject* object);
};

/// The items of a list, a tuple or their like; throws Mismatch for a text.
std::vector<Object> take_items(PyObject* object);
template <class T>
struct Taker<std::vector<T>> {
  static std::vector<T> take(PyObject* object) {
    std::vector<T> values;
    for (const Object& item : take_items(object)) values.push_back(python::take<T>(item.get()));
    return values;
  }
};
template <class T>
requires requires { std::tuple_size<T>::value; }
struct Taker<T> {
  static T take(PyObject* object) {
    constexpr std::size_t kCount = std::tuple_size_v<T>;
    const auto items = take_items(object);
    if (items.size() != kCount) mismatch(object, std::to_string(kCount) + " items");
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{python::take<std::tuple_element_t<I, T>>(items[I].get())...};
    }
    (std::make_index_sequence<kCount>());
  }
};
/// The first alternative that takes the object.
template <class First, class Second>
struct Taker<std::variant<First, Second>> {
  static std::variant<First, Second> take(PyObject* object) {
    try {
      return python::take<First>(object);
    } catch (const Mismatch&) {
      return python::take<Second>(object);
    }
  }
};

}  // namespace ladder::python
