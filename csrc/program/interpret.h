// SPDX-License-Identifier: Apache-2.0
//
// Runs a tile program without a device, by the model of program.h, and refuses what that model does
// not allow: reading what was not written, not waited for, or not yet behind a barrier; writing
// what another thread may still read; ending while a peer reads. What it computes is what the
// hardware computes: packed codes go through the shifts and masks that kernels execute, operands
// are rounded as registers hold them, sums are kept in f32.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace ladder {

/// A parameter in global memory.
struct Argument {
  std::vector<std::uint8_t> bytes;
  /// False for bytes that nobody wrote; a kernel that reads one is wrong.
  std::vector<bool> written;

  /// Given to the kernel.
  static Argument input(const void* data, std::size_t size);
  /// For the kernel to fill.
  static Argument output(std::size_t size);
};

/// Runs all blocks of `program` for `tokens` tokens. `arguments` are the global buffers in order.
/// Throws InternalError naming the instruction and the element when the program breaks the model.
void interpret(const Program& program, std::vector<Argument>& arguments, std::int64_t tokens);

}  // namespace ladder
