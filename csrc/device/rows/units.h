// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"

namespace ladder::rows {

inline constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGB = 1e9, kTera = 1e12;

}  // namespace ladder::rows
