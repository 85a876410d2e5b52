// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bounds/einsum.h"
#include "expr/problem.h"

namespace ladder::bounds {

/// What `problem` computes, for any order of doing it: its tensor expression (expr/constructors.h)
/// with the bytes of its formats; scales and zero points are shared among the codes of the weight.
/// Throws InvalidArgument for more ranks than an Einsum has.
Einsum einsum_of(const Problem& problem);

}  // namespace ladder::bounds
