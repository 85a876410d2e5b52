// SPDX-License-Identifier: Apache-2.0
#include "codegen/target.h"

#include <sstream>

namespace ladder {

std::string no_target(const Device& device) {
  std::ostringstream out;
  const int oldest = tile_instruction(Scalar::f16)->architecture;
  if (device.family != Family::nvidia) {
    out << "no target writes kernels for " << device.name << " (" << device.architecture
        << ") yet: the CUDA target is the only one";
  } else if (device.capability < oldest) {
    out << "no target writes kernels for " << device.name << " (" << device.architecture
        << ") yet: tile programs multiply by " << tile_instruction(Scalar::f16)->name
        << ", which needs sm_" << oldest;
  }
  return out.str();
}

}  // namespace ladder
