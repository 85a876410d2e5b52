// SPDX-License-Identifier: Apache-2.0
//
// What LADDER derives from a device row before it tiles: a granule that every level moves whole and
// a shape, in granules, that every level accepts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace ladder {

/// One requirement: `shape` granules of `granule_bytes`, the last dimension contiguous.
struct HintLayer {
  std::string name;
  int granule_bytes;
  std::vector<std::int64_t> shape;
};

/// Core first: the operands of `instruction`, the load that fills its registers, the banks of
/// shared memory, a transaction of global memory.
std::vector<HintLayer> hint_layers(const Device& device, const MatrixInstruction& instruction);

/// HintGranularity is the LCM of the granules; HintShape the LCM of the innermost extents and of
/// the element counts, both in that granule. Operands smaller than a granule are broadcast by the
/// load and ask for nothing.
struct Hint {
  int granularity_bytes;
  std::vector<std::int64_t> shape;
  bool operator==(const Hint&) const = default;
  /// Contiguous bytes that every level accepts.
  std::int64_t run_bytes() const { return granularity_bytes * shape.back(); }
};
Hint hint(const Device& device, const MatrixInstruction& instruction);

/// "granularity 16 B, shape [4, 8]: runs of 128 B".
std::string to_string(const Hint& hint);

}  // namespace ladder
