// SPDX-License-Identifier: Apache-2.0
//
// What the log should have once, and which devices have failed.
#pragma once

#include <string>

namespace ladder {

/// Has `line` be among those that take_notices() gives, once in this process however often it is
/// said.
void notice(const std::string& line);

/// Whether take_notices() has any. Costs a load.
bool notices_pending();
/// Lines to log, oldest first, each of them once: "... is read-only: new kernels go to ...".
std::string take_notices();

/// The line for a device whose weights all go through torch.
std::string no_kernels_on(int ordinal, const std::string& why);

/// Device `ordinal` loads none of the kernels that every weight needs, as the compiler or the
/// driver says in `why`: a notice, and what device_failure() says from now on. The first reason
/// stays.
void report_failure(int ordinal, const std::string& why);
/// Empty: none was reported.
std::string device_failure(int ordinal);

/// The first line of what a compiler or driver said.
std::string first_line(const std::string& text);

}  // namespace ladder
