// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "binding/inspect/inspect.h"
#include "types/ttype.h"

namespace py = pybind11;

namespace ladder::inspect {

void add_types(py::module_& module) {
  py::class_<Element>(module, "Element", "An element format: one row of csrc/types/table.cpp.")
      .def_property_readonly("name", [](const Element& e) { return std::string(e.name); })
      .def_readonly("bits", &Element::bits)
      .def_property_readonly("source", [](const Element& e) { return std::string(e.source); })
      .def(
          "decode", [](const Element& e, std::uint32_t code) { return decode(e, code); },
          py::arg("code"), "Value of a code, exact.")
      .def(
          "encode", [](const Element& e, double value) { return encode(e, value); },
          py::arg("value"), "Code of the nearest value, ties to even, saturating.")
      .def("__repr__", [](const Element& e) { return "<Element " + std::string(e.name) + ">"; });
  module.def(
      "element", [](const std::string& name) { return &element(name); }, py::arg("name"),
      py::return_value_policy::reference, "The element format of this name or alias.");
}

}  // namespace ladder::inspect
