// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "program/program.h"

namespace ladder::cuda {

/// CUDA C++ for `program`, as codegen/emit/dialect.h says.
std::string emit(const Program& program);

}  // namespace ladder::cuda
