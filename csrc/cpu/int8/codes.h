// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/int8/kernels.h"
#include "types/ttype.h"

namespace ladder::cpu::int8 {

/// The codes of a format as whole numbers; built at the first request, kept for the life of the
/// process. Exact where values are whole multiples of a power of two and lie within 255 of each
/// other; otherwise each is the nearest multiple of `step`, within max |value| / 254.
/// Throws Unsupported for formats of more than 8 bits and those with codes that are not finite.
const Codes& codes_of(const Element& element);

/// Throws Unsupported when weights of `type`, [n, k], cannot be multiplied by x of 8 bits.
void check_type(const TType& type, std::int64_t k);

}  // namespace ladder::cpu::int8
