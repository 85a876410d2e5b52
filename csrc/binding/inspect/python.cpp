// SPDX-License-Identifier: Apache-2.0
#include "binding/inspect/python.h"

#include "base/error.h"
#include "base/joined.h"
#include "binding/inspect/class.h"

namespace ladder::python {
namespace {

std::string type_name(PyObject* object) {
  const Object name(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
  return take<std::string>(name.get());
}

/// Python's own error of a number that it could not convert, as ours.
[[noreturn]] void not_a_number(PyObject* object, std::string_view expected) {
  PyErr_Clear();
  mismatch(object, expected);
}

std::string text_of(PyObject* object) {
  const Object text(PyObject_Repr(object));
  return take<std::string>(text.get());
}

}  // namespace

void mismatch(PyObject* object, std::string_view expected) {
  throw Mismatch(joined("is ", type_name(object), ", not ", expected));
}

void set_error() {
  try {
    throw;
  } catch (const Raised&) {
  } catch (const Mismatch& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const Unsupported& error) {
    PyErr_SetString(PyExc_NotImplementedError, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::out_of_range& error) {
    PyErr_SetString(PyExc_IndexError, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

std::int64_t take_integer(PyObject* object, std::int64_t low, std::int64_t high) {
  PyObject* const index = PyNumber_Index(object);
  if (index == nullptr) not_a_number(object, "int");
  const Object owned(index);
  const auto value = PyLong_AsLongLong(index);
  const bool overflow = value == -1 && PyErr_Occurred() != nullptr;
  if (overflow || value < low || value > high) {
    PyErr_Clear();
    throw Mismatch(joined("is ", text_of(index), ", not ", low, " to ", high));
  }
  return value;
}

std::uint64_t take_unsigned(PyObject* object) {
  PyObject* const index = PyNumber_Index(object);
  if (index == nullptr) not_a_number(object, "int");
  const Object owned(index);
  const auto value = PyLong_AsUnsignedLongLong(index);
  if (PyErr_Occurred() != nullptr) not_a_number(object, "int of 64 bits, 0 or more");
  return value;
}

double Taker<double>::take(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && PyErr_Occurred() != nullptr) not_a_number(object, "float");
  return value;
}

std::string Taker<std::string>::take(PyObject* object) {
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &length);
  if (text == nullptr) not_a_number(object, "str");
  return {text, static_cast<std::size_t>(length)};
}

std::vector<Object> take_items(PyObject* object) {
  if (PyUnicode_Check(object) != 0 || PySequence_Check(object) == 0) mismatch(object, "a sequence");
  std::vector<Object> items;
  const Py_ssize_t size = PySequence_Size(object);
  check(static_cast<int>(size));
  for (Py_ssize_t i = 0; i < size; ++i) items.emplace_back(PySequence_GetItem(object, i));
  return items;
}

const char* kept(std::string text) {
  static std::deque<std::string> texts;
  return texts.emplace_back(std::move(text)).c_str();
}

Signature::Signature(std::string name, bool method, std::size_t count, std::vector<Parameter> named)
    : name(std::move(name)), parameters(std::move(named)) {
  LADDER_CHECK(parameters.empty() || parameters.size() == count, this->name, " has ", count,
               " parameters and ", parameters.size(), " names");
  keywords = !parameters.empty();
  for (std::size_t i = parameters.size(); i < count; ++i) {
    parameters.push_back({"arg" + std::to_string(i), {}});
  }
  std::string text = this->name + "(" + (method ? "$self" : "");
  for (const Parameter& parameter : parameters) {
    text += (text.back() == '(' ? "" : ", ") + parameter.name;
    if (parameter.otherwise.get() != nullptr) text += "=" + text_of(parameter.otherwise.get());
  }
  heading = text + (keywords || text.back() == '(' ? "" : ", /") + ")\n--\n\n";
}

void Signature::bind(PyObject* args, PyObject* kwargs, std::span<PyObject*> values) const {
  const auto given = static_cast<std::size_t>(PyTuple_Size(args));
  if (given > values.size()) {
    throw Mismatch(joined(name, "() takes ", values.size(), " arguments, not ", given));
  }
  Py_ssize_t used = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = parameters[i];
    PyObject* value = i < given ? PyTuple_GetItem(args, static_cast<Py_ssize_t>(i)) : nullptr;
    PyObject* const named = kwargs != nullptr && keywords
                                ? PyDict_GetItemString(kwargs, parameter.name.c_str())
                                : nullptr;
    if (named != nullptr) {
      if (value != nullptr) throw Mismatch(joined(name, "() has two of ", parameter.name));
      value = named;
      ++used;
    }
    values[i] = value != nullptr ? value : parameter.otherwise.get();
    if (values[i] == nullptr) throw Mismatch(joined(name, "() lacks ", parameter.name));
  }
  if (kwargs != nullptr && PyDict_Size(kwargs) != used) {
    throw Mismatch(joined(name, "() has no parameter for some of ", text_of(kwargs)));
  }
}

Module::Module(PyObject* module) : module_(module) {
  const Object name(PyModule_GetNameObject(module));
  name_ = take<std::string>(name.get());
}

Module Module::submodule(const char* name, const char* doc) {
  PyObject* const module = PyImport_AddModule((name_ + "." + name).c_str());  // borrowed
  if (module == nullptr) throw Raised();
  check(PyModule_SetDocString(module, doc));
  set(name, module);
  return Module(module);
}

void Module::set(const char* name, PyObject* value) {
  Py_INCREF(value);  // which PyModule_AddObject takes
  check(PyModule_AddObject(module_, name, value));
}

PyObject* Module::enumeration(const char* name,
                              const std::vector<std::pair<std::string, int>>& members) {
  const Object enums(PyImport_ImportModule("enum"));
  const Object factory(PyObject_GetAttrString(enums.get(), "Enum"));
  const Object arguments(Py_BuildValue("(sN)", name, give(members).release()));
  const Object options(Py_BuildValue("{s:s}", "module", name_.c_str()));
  Object type(PyObject_Call(factory.get(), arguments.get(), options.get()));
  set(name, type.get());
  return type.release();
}

PyObject* new_type(const Module& module, const char* name, const char* doc, std::size_t bytes,
                   newfunc create, destructor destroy) {
  std::array<PyType_Slot, 4> slots{{{Py_tp_new, reinterpret_cast<void*>(create)},
                                    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                                    {Py_tp_doc, const_cast<char*>(doc)},
                                    {0, nullptr}}};
  PyType_Spec spec{kept(module.name() + "." + name), static_cast<int>(bytes), 0, Py_TPFLAGS_DEFAULT,
                   slots.data()};
  return Object(PyType_FromSpec(&spec)).release();
}

void set_attribute(PyObject* type, const std::string& name, Object value) {
  check(PyObject_SetAttrString(type, name.c_str(), value.get()));
  if (name == "__eq__") check(PyObject_SetAttrString(type, "__hash__", Py_None));
}

PyMethodDef* new_method(const Signature& signature, const char* doc, PyCFunctionWithKeywords call) {
  static std::deque<PyMethodDef> methods;
  return &methods.emplace_back(PyMethodDef{
      kept(signature.name), reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)),
      METH_VARARGS | METH_KEYWORDS, kept(signature.heading + doc)});
}

PyGetSetDef* new_property(const char* name, getter get, setter set) {
  static std::deque<PyGetSetDef> properties;
  return &properties.emplace_back(PyGetSetDef{name, get, set, nullptr, nullptr});
}

}  // namespace ladder::python
