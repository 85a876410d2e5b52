// SPDX-License-Identifier: Apache-2.0
//
// QuantizeKernels (codegen/weight_kernels.h) of types with one scale for the whole matrix, over the
// whole device. They follow each other on a stream:
//
//   extent                      the least and the greatest weight of each thread block
//   errors, choose   a phase    squared errors of the phase's candidates, then the best of them
//   codes                       codes, scale, zero point and second scale
#pragma once

#include <cstdint>
#include <string>

#include "codegen/weight_kernels.h"
#include "types/ttype.h"

namespace ladder::cuda {

bool is_of_tensor(const TType& type);
TensorLaunch tensor_launch(const TType& type, std::int64_t n, std::int64_t k, bool search);
std::string tensor_extent_source();
std::string tensor_errors_source(const TType& type);
std::string tensor_choose_source(const TType& type);
std::string tensor_codes_source(const TType& type);

}  // namespace ladder::cuda
