// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "binding/inspect/inspect.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Inspection of ladder's types, layouts, devices, schedules, programs and bounds.";
  pybind11::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const ladder::Unsupported& e) {
      PyErr_SetString(PyExc_NotImplementedError, e.what());
    }
  });
  ladder::inspect::add_types(module);
  ladder::inspect::add_bounds(module);
  ladder::inspect::add_explain(module);
  ladder::inspect::add_program_module(module);
}
