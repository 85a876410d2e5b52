// SPDX-License-Identifier: Apache-2.0
// What is of HIP alone in the fake driver (hip_driver.cpp).
#pragma once

namespace fake {

/// The error that this thread has left; torch would take it for its own.
int pending_error();
/// hipSetDevice, as torch calls it.
int device_of_this_thread();
void set_device_of_this_thread(int ordinal);
/// With what refused launches (driver.h) end.
void refuse_with(int error);
/// Whether the code of every module is still where it was loaded from.
bool keeps_code_of_modules();

}  // namespace fake
