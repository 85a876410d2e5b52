// SPDX-License-Identifier: Apache-2.0
//
// Every width of codes for every width of operands. Internal to the tests.
#pragma once

#include <ostream>
#include <vector>

namespace ladder::testing {

struct Widths {
  int bits, operand_bits;
};

inline void PrintTo(const Widths& widths, std::ostream* out) {
  *out << widths.bits << " bits for operands of " << widths.operand_bits;
}

inline std::vector<Widths> all_widths() {
  std::vector<Widths> out;
  for (int operand_bits : {16, 8}) {
    for (int bits = 1; bits <= 8; ++bits) out.push_back({bits, operand_bits});
  }
  return out;
}

}  // namespace ladder::testing
