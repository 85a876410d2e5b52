// SPDX-License-Identifier: Apache-2.0
// RoundingKernels (codegen/rounding_kernels.h) in CUDA.
#pragma once

#include <string>

#include "codegen/rounding_kernels.h"

namespace ladder::cuda {

std::string round_tokens_source(Scalar from, Scalar to, const RoundingPlan& plan, InChain chain);

}  // namespace ladder::cuda
