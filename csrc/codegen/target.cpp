// SPDX-License-Identifier: Apache-2.0
#include "codegen/target.h"

#include <sstream>

namespace ladder {

std::string no_target(const Device& device) {
  std::ostringstream out;
  if (device.family != Family::nvidia) {
    out << "no target writes kernels for " << device.name << " (" << device.architecture
        << ") yet: the CUDA target is the only one";
  } else if (!has_tile_programs(device)) {
    const MatrixInstruction& oldest = *tile_instruction(Scalar::f16);
    out << "no target writes kernels for " << device.name << " (" << device.architecture
        << ") yet: tile programs multiply by " << oldest.name << ", which needs sm_"
        << oldest.architecture;
  }
  return out.str();
}

}  // namespace ladder
