// SPDX-License-Identifier: Apache-2.0
// Functions, classes and modules of Python out of functions and classes of C++. A callable is
// stateless: a lambda without captures, or fn<&function>. So its type alone says what to call.
#pragma once

#include <deque>
#include <functional>
#include <span>

#include "binding/inspect/python.h"

namespace ladder::python {

/// A parameter by name; with what it is if not given.
struct Parameter {
  std::string name;
  Object otherwise;
};
inline Parameter arg(const char* name) { return {name, {}}; }
template <class T>
Parameter arg(const char* name, T otherwise) {
  return {name, give(std::move(otherwise))};
}

/// A text that lives as long as the process, as Python's tables want it.
const char* kept(std::string text);

/// How a function is called: by position, and by name where all its parameters have names.
struct Signature {
  Signature() = default;
  Signature(std::string name, bool method, std::size_t count, std::vector<Parameter> named);
  /// Borrowed references, one for each parameter. Throws Mismatch.
  void bind(PyObject* args, PyObject* kwargs, std::span<PyObject*> values) const;

  std::string name;
  std::string heading;  ///< first lines of the documentation, in which Python looks for a signature
  std::vector<Parameter> parameters;
  bool keywords = false;
};

// --- callables
// ------------------------------------------------------------------------------------

template <class Pointer>
struct Shape;
template <class R, class... A>
struct Shape<R (*)(A...)> {
  using Result = R;
  using Arguments = std::tuple<A...>;
};
template <class R, class... A>
struct Shape<R (*)(A...) noexcept> : Shape<R (*)(A...)> {};
template <class C, class R, class... A>
struct Shape<R (C::*)(A...)> : Shape<R (*)(C&, A...)> {};
template <class C, class R, class... A>
struct Shape<R (C::*)(A...) const> : Shape<R (*)(const C&, A...)> {};
template <class C, class R, class... A>
struct Shape<R (C::*)(A...) noexcept> : Shape<R (*)(C&, A...)> {};
template <class C, class R, class... A>
struct Shape<R (C::*)(A...) const noexcept> : Shape<R (*)(const C&, A...)> {};
template <class R, class C>
requires std::is_object_v<R>
struct Shape<R C::*> : Shape<R (*)(const C&)> {
};

/// A function, a method or a member as a callable.
template <auto Pointer>
struct Fn {
  using Of = Shape<decltype(Pointer)>;
  template <class... A>
  typename Of::Result operator()(A&&... arguments) const {
    return std::invoke(Pointer, std::forward<A>(arguments)...);
  }
};
template <auto Pointer>
inline constexpr Fn<Pointer> fn{};

template <class F>
struct ShapeOf : Shape<decltype(+std::declval<F>())> {};
template <auto Pointer>
struct ShapeOf<Fn<Pointer>> : Fn<Pointer>::Of {};
template <class F>
using ArgumentsOf = typename ShapeOf<F>::Arguments;

/// How the callable of this type is called. Set once, when it is registered, and never freed: the
/// objects in it must not outlive Python, which ends before static objects do.
template <class F>
inline const Signature* signature_of = nullptr;

/// Calls F with objects; `self` is its first argument if it is a method.
template <class F, bool Method>
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  using Arguments = ArgumentsOf<F>;
  constexpr std::size_t kCount = std::tuple_size_v<Arguments>, kFirst = Method ? 1 : 0;
  const Signature& signature = *signature_of<F>;
  try {
    std::array<PyObject*, kCount> values{};
    if constexpr (Method) values[0] = self;
    signature.bind(args, kwargs, std::span(values).subspan(kFirst));
    std::size_t at = 0;
    const auto taken = [&]<class T>(std::type_identity<T>, std::size_t i) -> decltype(auto) {
      at = i;
      return take<std::remove_cvref_t<T>>(values[i]);
    };
    try {
      return [&]<std::size_t... I>(std::index_sequence<I...>) {
        // Braces: arguments are taken in their order.
        std::tuple<decltype(take<std::remove_cvref_t<std::tuple_element_t<I, Arguments>>>(
            values[I]))...>
            arguments{taken(std::type_identity<std::tuple_element_t<I, Arguments>>(), I)...};
        at = kCount;
        if constexpr (std::is_void_v<typename ShapeOf<F>::Result>) {
          std::apply(F{}, std::move(arguments));
          Py_INCREF(Py_None);
          return Py_None;
        } else {
          using Result = std::remove_cvref_t<typename ShapeOf<F>::Result>;
          return give<Result>(std::apply(F{}, std::move(arguments))).release();
        }
      }
      (std::make_index_sequence<kCount>());
    } catch (const Mismatch& error) {
      if (signature.name.starts_with("__")) {  // Python asks the other operand
        Py_INCREF(Py_NotImplemented);
        return Py_NotImplemented;
      }
      throw Mismatch(signature.name + "(): " + signature.parameters.at(at - kFirst).name + " " +
                     error.what());
    }
  } catch (...) {
    set_error();
    return nullptr;
  }
}

// --- modules and classes
// --------------------------------------------------------------------------

class Module {
 public:
  explicit Module(PyObject* module);
  Module submodule(const char* name, const char* doc);
  /// Adds a function. `parameters` name all of its parameters, or none.
  template <class F, class... P>
  void def(const char* name, F /*callable*/, const char* doc, P... parameters);
  template <class F>
  void def(const char* name, F callable) {
    def(name, callable, "");
  }
  void set(const char* name, PyObject* value);
  /// Adds an enum.Enum.
  PyObject* enumeration(const char* name, const std::vector<std::pair<std::string, int>>& members);
  const std::string& name() const { return name_; }
  PyObject* get() const { return module_; }

 private:
  PyObject* module_;
  std::string name_;
};

PyObject* new_type(const Module& module, const char* name, const char* doc, std::size_t bytes,
                   newfunc create, destructor destroy);
void set_attribute(PyObject* type, const std::string& name, Object value);
PyMethodDef* new_method(const Signature& signature, const char* doc, PyCFunctionWithKeywords call);
PyGetSetDef* new_property(const char* name, getter get, setter set);

template <class... P>
std::vector<Parameter> parameters_of(P... parameters) {
  std::vector<Parameter> all;
  (all.push_back(std::move(parameters)), ...);
  return all;
}

template <class F, class... P>
void Module::def(const char* name, F /*callable*/, const char* doc, P... parameters) {
  constexpr std::size_t kCount = std::tuple_size_v<ArgumentsOf<F>>;
  signature_of<F> = new Signature(name, false, kCount, parameters_of(std::move(parameters)...));
  PyMethodDef* const method = new_method(*signature_of<F>, doc, &call<F, false>);
  const Object module(PyUnicode_FromString(name_.c_str()));
  set(name, Object(PyCFunction_NewEx(method, module_, module.get())).get());
}

/// A class of Python that holds a T. Without `init` only C++ makes instances.
template <class T>
class Class {
 public:
  Class(Module& module, const char* name, const char* doc = "") : name_(name) {
    type_of<T> = new_type(module, name, doc, sizeof(Instance<T>), &create, &destroy);
    module.set(name, type_of<T>);
  }

  template <class F, class... P>
  Class& init(F /*callable*/, P... parameters) {
    constexpr std::size_t kCount = std::tuple_size_v<ArgumentsOf<F>>;
    signature_of<F> = new Signature(name_, false, kCount, parameters_of(std::move(parameters)...));
    constructor_ = &call<F, false>;
    return *this;
  }
  template <class F, class... P>
  Class& def(const char* name, F /*callable*/, const char* doc, P... parameters) {
    constexpr std::size_t kCount = std::tuple_size_v<ArgumentsOf<F>> - 1;
    signature_of<F> = new Signature(name, true, kCount, parameters_of(std::move(parameters)...));
    PyMethodDef* const method = new_method(*signature_of<F>, doc, &call<F, true>);
    set_attribute(type_of<T>, name, Object(PyDescr_NewMethod(self(), method)));
    return *this;
  }
  template <class F>
  Class& def(const char* name, F callable) {
    return def(name, callable, "");
  }
  template <class F>
  Class& property(const char* name, F /*callable*/) {
    return property(name, &get<F>, nullptr);
  }
  /// A member that Python may change.
  template <auto Member>
  Class& member(const char* name) {
    return property(name, &get<Fn<Member>>, &put<Member>);
  }

 private:
  static PyTypeObject* self() { return reinterpret_cast<PyTypeObject*>(type_of<T>); }

  Class& property(const char* name, getter get, setter set) {
    set_attribute(type_of<T>, name,
                  Object(PyDescr_NewGetSet(self(), new_property(name, get, set))));
    return *this;
  }

  template <class F>
  static PyObject* get(PyObject* self, void* /*closure*/) {
    try {
      using Result = std::remove_cvref_t<typename ShapeOf<F>::Result>;
      return give<Result>(F{}(take<T>(self))).release();
    } catch (...) {
      set_error();
      return nullptr;
    }
  }

  template <auto Member>
  static int put(PyObject* self, PyObject* value, void* /*closure*/) {
    try {
      if (value == nullptr) throw Mismatch("a member of a C++ class cannot be deleted");
      auto& member = take<T>(self).*Member;
      member = take<std::remove_cvref_t<decltype(member)>>(value);
      return 0;
    } catch (...) {
      set_error();
      return -1;
    }
  }

  static PyObject* create(PyTypeObject* /*type*/, PyObject* args, PyObject* kwargs) {
    if (constructor_ != nullptr) return constructor_(nullptr, args, kwargs);
    PyErr_SetString(PyExc_TypeError, "instances of this class come from functions of ladder");
    return nullptr;
  }

  static void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    reinterpret_cast<Instance<T>*>(object)->value().~T();
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);  // an instance of a heap type owns a reference to it
  }

  const char* name_;
  static inline PyCFunctionWithKeywords constructor_ = nullptr;
};

}  // namespace ladder::python
