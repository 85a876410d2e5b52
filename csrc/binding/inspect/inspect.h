// SPDX-License-Identifier: Apache-2.0
// ladder._C: read-only views of the compiler's values for Python. One file per layer adds its own
// classes; nothing here is on the hot path, and `import ladder` works without it. Its stubs,
// ladder/_C/*.pyi, are written by hand.
#pragma once

#include "binding/inspect/class.h"

namespace ladder::inspect {

void add_types(python::Module& module);
void add_bounds(python::Module& module);
void add_explain(python::Module& module);
void add_devices(python::Module& module);
void add_program_module(python::Module& module);

}  // namespace ladder::inspect
