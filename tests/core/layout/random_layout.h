// SPDX-License-Identifier: Apache-2.0
// Layouts of two dimensions for properties that hold of all of them.
#pragma once

#include <random>

#include "layout/layout.h"

namespace ladder {

/// One of the layouts that all others are products of. `extent()` gives each of its extents.
template <class Extent>
Layout random_factor(std::mt19937& random, Extent extent) {
  switch (random() % 5) {
    case 0: return local({extent(), extent()});
    case 1: return spatial({extent(), extent()});
    case 2: return column_local({extent(), extent()});
    case 3: return column_spatial({extent(), extent()});
    default: return replicated(extent(), 2);
  }
}

/// With extents of 1 to 4.
inline Layout random_factor(std::mt19937& random) {
  return random_factor(random, [&] { return static_cast<std::int64_t>(1 + random() % 4); });
}

/// A product of three.
inline Layout random_layout(std::mt19937& random) {
  return random_factor(random) * random_factor(random) * random_factor(random);
}

}  // namespace ladder
