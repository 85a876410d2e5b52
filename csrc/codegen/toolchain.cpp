// SPDX-License-Identifier: Apache-2.0
#include "codegen/toolchain.h"

#include "base/joined.h"

namespace ladder {

std::string rejection(const MachineCode& binary) {
  if (binary.spill_bytes > 0) return joined("spills ", binary.spill_bytes, " bytes of registers");
  return binary.warning;
}

}  // namespace ladder
