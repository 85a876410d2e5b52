// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codegen/cuda/driver.h"
#include "device/device.h"

namespace ladder {

/// The row of a machine that the driver describes: the row of device/ that its name and capability
/// suggest, else the nearest older one, with what the driver tells put in its place. A machine of
/// the table keeps the row's name and numbers; of one that differs, a laptop's or a slice, the name
/// is the driver's. Rows live for the life of the process; one description has one row.
/// Throws Unsupported for machines older than every row that has a target.
const Device& device_row(const cuda::Properties& properties);

/// The row of device `ordinal`, asked of the driver once.
const Device& device_row(int ordinal);

/// Devices that ladder keeps state for.
constexpr int kMaxDevices = 32;

}  // namespace ladder
