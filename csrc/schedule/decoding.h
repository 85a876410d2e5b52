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

/// Whether one multiply-add makes `rounded` operands of codes with integer scales, which rounds
/// nothing: products are numbers of the operand's format, as rounds_no_product() says, and so is
/// each scale times what takes codes, read as the mantissas of numbers that begin with one, to
/// their zero point.
bool joins_whole_scales(const Problem& problem);

}  // namespace ladder
