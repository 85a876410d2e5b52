// SPDX-License-Identifier: Apache-2.0
//
// Windows as text, for what passes only text and numbers on.
#pragma once

#include <string_view>

#include "expr/windows.h"

namespace ladder {

/// The numbers of Windows with commas between: size, taps, stride, padding, dilation of y, the same
/// of x, channels. Throws InvalidArgument for another text, and as check().
Windows windows_from(std::string_view numbers);

}  // namespace ladder
