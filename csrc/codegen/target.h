// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "device/device.h"
#include "program/program.h"

namespace ladder {

/// A language that kernels are written in, as a row.
struct Target {
  std::string_view name;
  Family family;  ///< of the devices that it is for
  /// The kernel of a program, complete. Equal programs give equal text on any machine.
  std::string (*emit)(const Program& program);
};

/// Why no target writes kernels for `device` yet; empty when one does.
std::string no_target(const Device& device);
/// The target that does. Throws Unsupported with no_target().
const Target& target_of(const Device& device);

}  // namespace ladder
