// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace ladder {

/// "0x000f000fu".
std::string hex(std::uint32_t value);
/// An exact float.
std::string literal(double value);

}  // namespace ladder
