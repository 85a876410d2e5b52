// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "program/program.h"

namespace ladder::hip {

/// HIP C++ for `program`, as codegen/emit/dialect.h says, for waves of 32 or 64 lanes. Asks
/// the compiler for -ffp-contract=on: sums of products in one expression take one rounding.
/// Throws Unsupported for instructions that AMD's devices have not: clusters, signals, copies by an
/// engine, load-matrix, digits.
std::string emit(const Program& program);

}  // namespace ladder::hip
