// SPDX-License-Identifier: Apache-2.0
//
// How the codes of an expression become operands on a device, which may have an instruction for it.
#pragma once

#include <utility>

#include "device/device.h"
#include "expr/decoding.h"

namespace ladder {

/// decoding_of(), converted() where the device converts. Throws as that does.
inline Decoding decoding_on(const Device& device, const Problem& problem, ScalePlace place) {
  auto decoding = decoding_of(problem, place);
  return device.converts_e4m3() ? converted(std::move(decoding), problem) : decoding;
}

}  // namespace ladder
