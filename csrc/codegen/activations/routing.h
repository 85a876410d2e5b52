// SPDX-License-Identifier: Apache-2.0
// RoutingKernels (codegen/routing_kernels.h) in the words of a target.
#pragma once

#include <string>

#include "codegen/activations/words.h"
#include "codegen/routing_kernels.h"

namespace ladder::activations {

std::string route_source(RowKind rows, const Words& words);
std::string gated_source(Scalar scalar, Gated what, RowKind rows, const Words& words);
std::string combine_source(Scalar scalar, Scalar weight, RowKind rows, const Words& words);

}  // namespace ladder::activations
