// SPDX-License-Identifier: Apache-2.0
//
// Warp specialisation: some warps of a block only copy, for the others, which only multiply.
#pragma once

namespace ladder {

/// Producers are behind the consumers among the threads of a block. They end when they have nothing
/// left to copy; what consumers do then meets those threads only that have not ended. Registers of
/// a thread are divided anew between the two when they part.
struct Roles {
  int producers;  ///< threads
  int producer_registers, consumer_registers;

  /// Registers of the block, which has `consumers` threads more.
  int registers(int consumers) const {
    return producers * producer_registers + consumers * consumer_registers;
  }
};

}  // namespace ladder
