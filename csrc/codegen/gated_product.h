// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "expr/gating.h"

namespace ladder {

/// An expression of `gate` and `up`, of floats that are clamped already, and `alpha`. Its functions
/// are those of C in CUDA's words, which every target's preludes have, and kSigmoid. A
/// quotient to nearest has a branch for what is subnormal, which keeps products of a thread apart.
std::string_view gated_product(Gated what);
constexpr std::string_view kSigmoid =
    "DEVICE float sigmoid(float v) { return __fdividef(1.0f, 1.0f + __expf(-v)); }\n";

}  // namespace ladder
