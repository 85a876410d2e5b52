// SPDX-License-Identifier: Apache-2.0
//
// ImageKernels (codegen/weight_kernels.h) that give the values of an image, and that move columns,
// for weights whose groups are scattered over K.
#pragma once

#include <string>
#include <string_view>

#include "expr/weight.h"

namespace ladder::weights {

std::string dequantize_source(const Weight& weight, Scalar out, std::string_view prelude);
std::string permute_source(int bits, std::string_view prelude);

}  // namespace ladder::weights
