// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "program/program.h"

namespace ladder::cuda {

/// CUDA C++ for `program`, prelude included: one kernel called program.name, its parameters the
/// global buffers in order, then `unsigned tokens`. Needs program.shared_bytes() of dynamic shared
/// memory. Pure: equal programs give equal text on any machine.
std::string emit(const Program& program);

}  // namespace ladder::cuda
