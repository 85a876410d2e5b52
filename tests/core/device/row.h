// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/error.h"
#include "device/instructions.h"

namespace ladder {

inline const MatrixInstruction& row(std::string_view name) {
  for (const auto& row : matrix_instructions()) {
    if (row.name == name) return row;
  }
  fail<InvalidArgument>("no instruction ", name);
}

}  // namespace ladder
