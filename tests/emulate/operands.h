// SPDX-License-Identifier: Apache-2.0
//
// What lanes bring to a matrix instruction. Internal to the emulator.
#pragma once

#include <cstdint>
#include <vector>

#include "types/scalar.h"

namespace ladder::emulate {

/// All numbers of a format of 16 bits.
template <Scalar S>
inline const std::vector<double>& numbers() {
  static const std::vector<double> all = [] {
    std::vector<double> out(1 << 16);
    for (std::uint32_t bits = 0; bits < out.size(); ++bits) out[bits] = to_number(S, bits);
    return out;
  }();
  return all;
}

template <class Sum>
struct Product {
  Sum* d;
  const std::uint32_t *a, *b;
};

}  // namespace ladder::emulate
