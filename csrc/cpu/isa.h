// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/int8/kernels.h"
#include "cpu/kernels.h"
#include "cpu/linear.h"

namespace ladder::cpu {

/// The kernels of `isa`. Throws InvalidArgument when this machine cannot run them.
const Kernels& kernels_of(Isa isa);

/// Those for x of 8 bits. AVX-512 without VNNI has those of avx2. Throws as kernels_of.
const int8::Kernels& int8_kernels_of(Isa isa);

}  // namespace ladder::cpu
