// SPDX-License-Identifier: Apache-2.0
//
// LADDER's SelectDeviceConfig: by which instruction a device multiplies two element formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"
#include "schedule/primitives.h"

namespace ladder {

/// Who multiplies.
enum class Multiplier {
  any,            ///< whatever the device has: a library's dense product
  tile_programs,  ///< a kernel of ours (device/instructions.h)
};

/// The instruction, and what becomes of the operands.
struct Core {
  const MatrixInstruction* instruction;
  bool exact;  ///< every weight is a value of the operand type; else the nearest one
  /// One line for each operand type of the device, and for each faster instruction passed over.
  std::vector<std::string> considered;
  const Element& operand() const { return element(instruction->operand); }
};

/// Of the device's operand types that hold every activation and every weight exactly, the
/// narrowest; of its instructions, the fastest that `by` has. Where none holds every weight, the
/// activation's own type, to which weights are rounded.
/// Of rows that tile programs have, `group` prefers those whose columns divide so many; 0: any.
/// Throws Unsupported when no instruction of `by` takes the activations exactly.
Core choose_core(const Device& device, const Element& activation, const TileType& weight,
                 Multiplier by = Multiplier::any, std::int64_t group = 0);

/// True when every value of `from` is one of `to`.
bool holds(const Element& to, const TileType& from);

}  // namespace ladder
