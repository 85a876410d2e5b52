// SPDX-License-Identifier: Apache-2.0
//
// Device functions that round to the values of an element and of a format of scales. Internal to
// csrc/codegen/cuda.
#pragma once

#include <string>

#include "types/scale_search.h"

namespace ladder::cuda {

/// nearest(v, tables), the value nearest to v, and code_of(v, tables), its code; and
/// table_entries[kTables], which the kernel puts into shared memory as `tables`.
std::string value_functions(const Element& element);

/// stored(scale), the value stored for it, and scale_code(stored), its bits.
/// Throws Unsupported for ScaleRounding::Kind::any.
std::string scale_functions(const Element* format);

}  // namespace ladder::cuda
