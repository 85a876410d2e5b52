// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codegen/driver.h"
#include "device/device.h"
#include "runtime/calibration_file.h"

namespace ladder {

/// The row of a machine that the driver describes: the row of device/ that its name and capability
/// suggest, else the nearest older one, with what the driver tells put in its place; of AMD's
/// machines a row of the same architecture. A machine of the table keeps the row's name and
/// numbers; of one that differs, a laptop's or a slice, the name is the driver's. The architecture
/// is the driver's, with its features. Rows live for the life of the process; one description has
/// one row.
/// Throws Unsupported for machines older than every row that has a target, and for architectures of
/// AMD that no row has.
const Device& device_row(const Properties& properties);

/// LADDER_UNPROVEN=1: Device::unproven of the rows above, and of `ladder explain`. Asked of the
/// environment once.
bool allows_unproven();

/// The row of device `ordinal` of gpus() (runtime/gpus.h), asked of the driver once, with the
/// calibration of the machine (runtime/calibration_file.h), read once, too.
const Device& device_row(int ordinal);
/// The same with what it is made of.
const CalibratedRow& calibrated_row(int ordinal);

/// Devices that ladder keeps state for.
constexpr int kMaxDevices = 32;

}  // namespace ladder
