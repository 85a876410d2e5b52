// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "device/device.h"

namespace ladder {

/// Why no target writes kernels for `device` yet; empty when one does.
std::string no_target(const Device& device);

}  // namespace ladder
