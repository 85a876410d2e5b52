// SPDX-License-Identifier: Apache-2.0
//
// From a stored type to the expression by which a device multiplies it, and what loading a weight
// must do for the two to agree:
//   - codes are XORed with flip_of(element);
//   - scales and floating zero points become [n, groups] in the scalars that the expression names,
//     which hold every value of the stored ones: rows of a block repeat its scale;
//   - integer and quantised zero points become bytes.
#pragma once

#include <cstdint>

#include "expr/linear.h"
#include "types/ttype.h"

namespace ladder {

/// XORed to the codes of `element` on their way to the device: two's complement becomes an unsigned
/// integer with a constant zero point.
std::uint32_t flip_of(const Element& element);

/// The scalar that holds scales of `format`: itself where kernels read it, else f32.
/// Throws Unsupported for formats of more than 32 bits.
Scalar scale_scalar(const Element& format);

/// The expression of a weight [n, k] of `type` for at most `max_m` tokens, without bias and gather,
/// which are the layer's to add.
/// Throws Unsupported with the reason when no kernel multiplies such codes.
Linear linear_of(const TType& type, std::int64_t n, std::int64_t k, Scalar activation,
                 std::int64_t max_m);

}  // namespace ladder
