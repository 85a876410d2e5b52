// SPDX-License-Identifier: Apache-2.0
//
// Counters for reductions through global memory (split-K): zero when a kernel starts, zero when it
// ends. No two kernels that may run at once have the same:
//
//   launches that run     those of their stream, one behind the other. A dependent launch
//                         (griddepcontrol) begins before the preceding kernel has ended, but counts
//                         after its wait only: by then that has ended and left zeros.
//   launches in a graph   their own, for as long as the graph, or what was instantiated of it,
//                         lives. Two executions of one graph must not overlap, for its tensors'
//                         sake neither.
//
// A stream keeps its counters for the life of the process, at least 256 bytes: the driver does not
// tell when it is destroyed.
#pragma once

#include <cstdint>

namespace ladder {

/// `count` counters on the device for one launch on `stream`. Allocates where it must; during a
/// capture too, without a trace in the graph.
std::uint32_t* take_counters(int ordinal, std::int64_t count, void* stream);

}  // namespace ladder
