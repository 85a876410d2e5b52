// SPDX-License-Identifier: Apache-2.0
// The closed form of a matmul's ski slope. At most one of the three tensors stays in the buffer
// while the innermost loop steps, and then that loop's rank needs no tile of its own; three
// families of two tile sizes each therefore hold every mapping worth having.
#pragma once

#include <functional>
#include <optional>

#include "bounds/slope.h"

namespace ladder::bounds {

/// An Einsum c[m, n] = a[m, k] w[n, k], repeated over ranks that index all three tensors.
struct MatmulShape {
  std::int64_t m, n, k;
  std::int64_t repeats;        ///< product of the ranks common to all tensors
  int m_rank, n_rank, k_rank;  ///< indices into Einsum::ranks; -1 for a rank of size 1
  std::vector<int> common_ranks;
  Tensor a, w, c;
};

/// The matmul that `einsum` is, if it is one with at most one rank for each of m, n and k.
std::optional<MatmulShape> matmul_shape(const Einsum& einsum);

/// Calls `visit` with mappings among which are all points of the ski slope.
void for_each_matmul_candidate(const MatmulShape& shape, const Options& options,
                               const std::function<void(const Mapped&)>& visit);

}  // namespace ladder::bounds
