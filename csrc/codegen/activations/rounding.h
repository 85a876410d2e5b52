// SPDX-License-Identifier: Apache-2.0
// RoundingKernels (codegen/rounding_kernels.h) in the words of a target.
#pragma once

#include <string>

#include "codegen/activations/words.h"
#include "codegen/rounding_kernels.h"

namespace ladder::activations {

std::string round_tokens_source(Scalar from, Scalar to, TokenScales whose, const RoundingPlan& plan,
                                InChain chain, const Words& words);

}  // namespace ladder::activations
