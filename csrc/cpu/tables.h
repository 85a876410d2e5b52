// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels.h"
#include "types/element.h"

namespace ladder::cpu {

/// The tables of a format of at most 8 bits with `zero` subtracted from every value; built at the
/// first request and kept for the life of the process, as elements are. Thread-safe.
const Tables& tables_of(const Element& element, int zero);

}  // namespace ladder::cpu
