// SPDX-License-Identifier: Apache-2.0
// How the tiles of a schedule must lie for the instruction and the hint of Algorithm 1. Rows of the
// image are tiles of 16 and its blocks 64 x 64, so on the devices there are most of this holds for
// every schedule; what it does not hold for is a lane's words of codes of odd widths.
#include "base/joined.h"
#include "layout/weight_image.h"
#include "pipelines/decode/objection.h"
#include "pipelines/decode/shared_memory.h"
#include "schedule/decisions.h"

namespace ladder {

std::string alignment_objection(const DecodeSchedule& s, const Decisions& decisions) {
  const Problem& problem = decisions.problem;
  const MatrixInstruction& mma = *decisions.of(s.route).core.instruction;
  const Hint& hint = decisions.of(s.route).hint;
  const auto rows = s.tile_rows() / s.warps_n, columns = kBlock * s.blocks_per_warp;
  if (s.tokens % mma.n != 0) {
    return joined(s.tokens, " tokens are not whole instructions of ", mma.n);
  }
  if (rows % mma.m != 0 || columns % mma.k != 0) {
    return joined("a warp's ", rows, " x ", columns, " are not whole instructions of ", mma.m,
                  " x ", mma.k);
  }
  // As they come from global memory: digits are made of whole runs, and are shorter.
  const auto row_bytes = staged_columns(s) * bytes_of(problem.activation());
  if (s.tokens % hint.shape[0] != 0 || row_bytes % hint.run_bytes() != 0) {
    return joined("activations of ", s.tokens, " rows of ", row_bytes,
                  " bytes are not whole tiles of the hint, ", hint.shape[0], " runs of ",
                  hint.run_bytes());
  }
  // Of one block of the image, each 32-bit word of which has as many bits of every lane.
  const auto lane_bytes = std::int64_t{4} * s.m16_tiles * problem.weight.bits;
  if (lane_bytes % hint.granularity_bytes != 0) {
    return joined(s.m16_tiles, " m16 tiles of ", problem.weight.bits,
                  " bits are not whole pieces of ", hint.granularity_bytes, " bytes");
  }
  return {};
}

}  // namespace ladder
