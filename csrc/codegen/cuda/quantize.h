// SPDX-License-Identifier: Apache-2.0
//
// QuantizeKernels (codegen/weight_kernels.h) in CUDA: the same rules as on the host
// (types/scale_search.h), every operation an intrinsic that rounds once (__fmul_rn and its like,
// which no compiler contracts), the same order of sums. Of types with one scale for a whole matrix,
// see codegen/cuda/quantize_tensor.h.
#pragma once

#include <cstdint>
#include <string>

#include "codegen/weight_kernels.h"
#include "types/ttype.h"

namespace ladder::cuda {

std::string measure_source();
std::string measure_rows_source();
QuantizeLaunch quantize_launch(const TType& type, std::int64_t n, std::int64_t k);
std::string quantize_source(const TType& type);
std::string pack_rows_source(int bits);

}  // namespace ladder::cuda
