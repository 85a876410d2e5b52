// SPDX-License-Identifier: Apache-2.0
//
// LADDER's SelectDeviceConfig: by which instruction a device multiplies two element formats.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"
#include "schedule/primitives.h"

namespace ladder {

/// The instruction, and what becomes of the operands.
struct Core {
  const MatrixInstruction* instruction;
  bool exact;  ///< every weight is a value of the operand type; else the nearest one
  std::vector<std::string> considered;  ///< one line for each operand type of the device
  const Element& operand() const { return element(instruction->operand); }
};

/// Of the device's operand types that hold every activation and every weight exactly, the
/// narrowest; of its instructions, the fastest. Where none holds every weight, the activation's own
/// type, to which weights are rounded.
/// Throws Unsupported when no instruction takes the activations exactly.
Core choose_core(const Device& device, const Element& activation, const TileType& weight);

/// True when every value of `from` is one of `to`.
bool holds(const Element& to, const TileType& from);

}  // namespace ladder
