// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels.h"
#include "cpu/linear.h"

namespace ladder::cpu {

/// The kernels of `isa`. Throws InvalidArgument when this machine cannot run them.
const Kernels& kernels_of(Isa isa);

}  // namespace ladder::cpu
