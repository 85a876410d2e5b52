// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "pipelines/tiles/schedule.h"

namespace ladder {

/// Of a thread: of the 255 that every NVIDIA device has (CUDA C++ Programming Guide, table of
/// capabilities), those with which estimates do not spill.
constexpr std::int64_t kMostRegisters = 244;

/// Registers of a thread: sums, words, operands, and what addresses and decoding keep. An estimate;
/// the compiler has the last word.
std::int64_t tile_registers(const TileSchedule& schedule, const Problem& problem);

}  // namespace ladder
