// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bounds/einsum.h"

namespace ladder::bounds {

/// Bytes that any schedule whatever moves between the backing store and buffers of
/// `capacity_bytes`: any order of the multiplications, any replacement policy, recomputation
/// excluded. Only this may prune for good; a ski slope ranks.
///
/// `buffers` private buffers of `capacity_bytes` each may share the work, as the SMs of a GPU do;
/// what one of them hands to another is counted as moved.
///
/// Two arguments, of which the larger counts: every element touched is moved once; and, for
/// Einsums of two inputs in which each rank indexes two tensors or all three (matmul, batched,
/// grouped, convolution), any stretch of the schedule that moves T bytes can multiply at most
/// F(capacity + T) pairs (Irony, Toledo, Tiskin 2004; with the constant of Smith et al., arXiv
/// 1702.02017). F counts how often an input element serves in overlapping windows.
///
/// Throws InvalidArgument unless capacity_bytes > 0 and buffers >= 1.
double lower_bound(const Einsum& einsum, double capacity_bytes, std::int64_t buffers = 1);

}  // namespace ladder::bounds
