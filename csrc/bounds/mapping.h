// SPDX-License-Identifier: Apache-2.0
// One mapping of an Einsum onto a backing store and a buffer (the Snowcat space of the paper).
// Rank d of size D is cut into ceil(D / tile[d]) blocks; the loops over blocks run outside the
// buffer in a given order, everything inside a tile runs from the buffer. A tensor is loaded
// again whenever a loop at or outside its innermost relevant loop steps.
#pragma once

#include <array>
#include <cstdint>

#include "bounds/einsum.h"

namespace ladder::bounds {

struct Mapping {
  std::array<std::int64_t, kMaxRanks> tile{};  ///< tile[r] in [1, size of rank r]
  /// Ranks of the loops outside the buffer, outermost first; a loop of one block does not matter.
  std::array<std::int8_t, kMaxRanks> order{};
};

/// How much of a tensor must be in the buffer at once.
enum class Space {
  uniform,    ///< the whole tile of every tensor: the paper's space
  streaming,  ///< a tensor that nothing reuses across tiles passes through piece by piece
};

/// Bytes that the mapping needs in the buffer; for `streaming` with the best order inside a tile.
/// Throws InvalidArgument unless `mapping` fits `einsum`.
double buffer_bytes(const Einsum& einsum, const Mapping& mapping, Space space = Space::uniform);

/// Bytes that the mapping moves. Inputs are read, outputs read and written; the first read of an
/// output element is left out. Overlapping windows along the innermost moving axis are kept
/// (halo). Blocks that do not divide their rank count with their true, smaller last block.
double traffic_bytes(const Einsum& einsum, const Mapping& mapping);

/// Pairs of tiles (of divisors) and orders of loops with more than one block; with `bypass`, times
/// the 2^tensors choices which of the tensors are kept at all. The paper's Table I.
std::int64_t mapping_count(const Einsum& einsum, bool bypass = false);

}  // namespace ladder::bounds
