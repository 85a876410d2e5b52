// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/isa.h"
#include "cpu/quantize_kernels.h"
#include "types/element.h"

namespace ladder::cpu {

/// The values of an element of at most 8 bits, in the quickest of the shapes.
/// Throws InvalidArgument for a wider one.
Values values_of(const Element& element);

/// Those of `isa`. Throws InvalidArgument when this machine cannot run them.
const QuantizeKernels& quantize_kernels_of(Isa isa);

}  // namespace ladder::cpu
