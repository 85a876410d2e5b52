// SPDX-License-Identifier: Apache-2.0
//
// A line for every cell and number of tokens of the compile matrix (matrix.h), and for chains of
// layers where the device has them: the scheduler's first choice and the hash of its kernel's text.
// A change that should leave kernels as they are leaves these lines as they are:
//     kernel_texts > before;  ...  kernel_texts > after;  diff before after
// With STRIDE, each cell of which the index modulo that is PART.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "compile.h"
#include "matrix.h"
#include "runtime/kernel_key.h"

int main(int argc, char** argv) {
  using namespace ladder;
  const std::size_t part = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const std::size_t stride = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::size_t index = 0;
  for (const auto& stratum : testing::strata()) {
    for (auto [device, problem, tokens] : stratum.cells) {
      if (index++ % stride != part) continue;
      for (const auto m : tokens) {
        problem.m = m;
        for (const bool chained : {false, true}) {
          if (chained && !device->dependent_launch()) continue;
          std::string line = std::string(device->name) + ": " + to_string(problem) + ": ";
          try {
            const Compiled kernel = compile(problem, *device, chained);
            line += to_string(kernel.schedule) + ": " + digest_of(kernel.source);
          } catch (const Unsupported& none) {
            line += "none";
          }
          std::puts(line.c_str());
        }
      }
    }
  }
}
