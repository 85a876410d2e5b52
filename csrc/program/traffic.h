// SPDX-License-Identifier: Apache-2.0
//
// What a program asks of shared and global memory, counted from its accesses without running it
// (layout/conflicts.h has the rules).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/conflicts.h"
#include "program/program.h"

namespace ladder {

/// One instruction at one end, over all trips of the loops around it, for one thread block.
struct MemoryTraffic {
  std::string instruction;
  BufferId buffer;
  bool write;
  /// Of shared memory, wavefronts and phases; of global memory, sectors and lines.
  AccessCount count;
};

/// The accesses of the first block of `program` when the call has `tokens`, in the order of its
/// instructions; what an If decides is counted as if it were so. Global buffers start at a line.
/// A bulk copy moves whole sectors and wavefronts.
std::vector<MemoryTraffic> traffic(const Program& program, std::int64_t tokens);

/// Instructions that `traffic` goes through, those of a loop once a trip: what it takes is in
/// proportion, about ten microseconds each.
double traffic_visits(const Program& program);

/// Sums over the rows of shared or of global memory.
AccessCount total(const Program& program, const std::vector<MemoryTraffic>& rows, Level level);

/// One row per line: "reads x_tile in 32 accesses, 128 wavefronts, 0 conflicts: b = load_matrix
/// ...".
std::string to_string(const Program& program, const std::vector<MemoryTraffic>& rows);

}  // namespace ladder
