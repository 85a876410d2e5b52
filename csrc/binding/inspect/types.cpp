// SPDX-License-Identifier: Apache-2.0
#include "binding/inspect/inspect.h"
#include "types/ttype.h"

namespace ladder::inspect {

using python::arg;
using python::fn;

void add_types(python::Module& module) {
  python::Class<Element>(module, "Element", "An element format: one row of csrc/types/table.cpp.")
      .property("name", fn<&Element::name>)
      .property("bits", fn<&Element::bits>)
      .property("source", fn<&Element::source>)
      .def(
          "decode", [](const Element& e, std::uint32_t code) { return decode(e, code); },
          "Value of a code, exact.", arg("code"))
      .def(
          "encode", [](const Element& e, double value) { return encode(e, value); },
          "Code of the nearest value, ties to even, saturating.", arg("value"))
      .def("__repr__", [](const Element& e) { return "<Element " + std::string(e.name) + ">"; });
  module.def(
      "element", [](const std::string& name) { return element(name); },
      "The element format of this name or alias.", arg("name"));
}

}  // namespace ladder::inspect
