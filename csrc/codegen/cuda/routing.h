// SPDX-License-Identifier: Apache-2.0
// RoutingKernels (codegen/routing_kernels.h) in CUDA.
#pragma once

#include <string>

#include "codegen/routing_kernels.h"

namespace ladder::cuda {

std::string route_source(RowKind rows);
std::string gated_source(Scalar scalar, Gated what, RowKind rows);
std::string combine_source(Scalar scalar, Scalar weight, RowKind rows);

}  // namespace ladder::cuda
