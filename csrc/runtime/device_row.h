// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codegen/cuda/driver.h"
#include "device/device.h"

namespace ladder {

/// The row of device/ for a machine that the driver describes: the one of its name and capability;
/// for a machine without a row, the nearest older row with what the driver measured put in its
/// place. Rows live for the life of the process.
/// Throws Unsupported for machines older than every row that has a target.
const Device& device_row(const cuda::Properties& properties);

/// The row of device `ordinal`, asked of the driver once.
const Device& device_row(int ordinal);

/// Devices that ladder keeps state for.
constexpr int kMaxDevices = 32;

}  // namespace ladder
