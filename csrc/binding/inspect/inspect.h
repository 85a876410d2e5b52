// SPDX-License-Identifier: Apache-2.0
// ladder._C: read-only views of the compiler's values for Python. One file per layer adds its own
// classes; nothing here is on the hot path, and `import ladder` works without it.
#pragma once

#include <pybind11/pybind11.h>

namespace ladder::inspect {

void add_types(pybind11::module_& module);
void add_bounds(pybind11::module_& module);
void add_explain(pybind11::module_& module);
void add_program_module(pybind11::module_& module);

}  // namespace ladder::inspect
