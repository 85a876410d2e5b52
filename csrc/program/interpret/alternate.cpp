// SPDX-License-Identifier: Apache-2.0
//
// Halves of a block that are a phase apart: what both do between two barriers comes in any order,
// and shared memory knows by the barriers what that order must not change.
#include <array>

#include "program/interpret/interpreter.h"

namespace ladder {

void Interpreter::alternate(Block& block, const Alternate& part) {
  const std::array<std::vector<Phase>, kHalves> halves = {phases_of(part, Half::first),
                                                          phases_of(part, Half::second)};
  const auto count = halves[0].size();
  if (halves[1].size() != count) {
    fault("the first half of the threads meets ", count - 1, " barriers, the second ",
          halves[1].size() - 1);
  }
  const auto all = threads_;
  const int of_half = program_.threads / kHalves;
  for (std::size_t phase = 0; phase < count; ++phase) {
    for (std::size_t turn = 0; turn < kHalves; ++turn) {
      const auto half = (phase + turn) % kHalves;
      threads_ = {static_cast<int>(half) * of_half, (static_cast<int>(half) + 1) * of_half};
      for (const auto& [statement, trips] : halves[half][phase]) {
        for (const auto& [variable, trip] : trips) block.variables[variable] = trip;
        statement_ = statement;
        instruction(block, *statement);
      }
    }
    if (phase + 1 < count) block.shared.barrier();
  }
  threads_ = all;
}

}  // namespace ladder
