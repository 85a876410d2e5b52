// SPDX-License-Identifier: Apache-2.0
#include "binding/inspect/inspect.h"

extern "C" PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef definition = {
      PyModuleDef_HEAD_INIT,
      "ladder._C",
      "Inspection of ladder's types, layouts, devices, schedules, programs and bounds.",
      -1,
      nullptr,
      nullptr,
      nullptr,
      nullptr,
      nullptr};
  try {
    ladder::python::Object owned(PyModule_Create(&definition));
    ladder::python::Module module(owned.get());
    ladder::inspect::add_types(module);
    ladder::inspect::add_bounds(module);
    ladder::inspect::add_explain(module);
    ladder::inspect::add_devices(module);
    ladder::inspect::add_program_module(module);
    return owned.release();
  } catch (...) {
    ladder::python::set_error();
    return nullptr;
  }
}
