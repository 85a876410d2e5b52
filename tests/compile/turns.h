// SPDX-License-Identifier: Apache-2.0
//
// What a run compiles of a test that would take minutes for everything: LADDER_COMPILE_SEED
// chooses, and `make compile-matrix`, which runs the tests called DISABLED_Whole, compiles all.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>

namespace ladder::testing {

/// Takes turns: one of `stride` is taken, another in a test of another `name`.
class Turns {
 public:
  explicit Turns(std::size_t stride, const std::string& name = "")
      : stride_(stride), turn_((seed() + std::hash<std::string>()(name)) % stride) {}
  bool next() { return turn_++ % stride_ == 0; }

 private:
  static std::size_t seed() {
    const char* seed = std::getenv("LADDER_COMPILE_SEED");
    return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0;
  }
  std::size_t stride_, turn_;
};

}  // namespace ladder::testing
