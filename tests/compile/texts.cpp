// SPDX-License-Identifier: Apache-2.0
//
// A line for every cell and number of tokens of the compile matrix (matrix.h), for chains of layers
// where the device has them, and for x of 8 bits where the device multiplies it with the codes: the
// scheduler's first choice and the hash of its kernel's text.
// A change that should leave kernels as they are leaves these lines as they are:
//     kernel_texts > before;  ...  kernel_texts > after;  diff before after
// With STRIDE, each cell of which the index modulo that is PART.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/error.h"
#include "compile.h"
#include "matrix.h"
#include "runtime/kernel_key.h"
#include "runtime/session.h"

namespace ladder {
namespace {

bool multiplies(const Problem& rounded, const Device& device) {
  try {
    check(rounded);
    require_rounded(rounded, device);
    return true;
  } catch (const InvalidArgument& no_expression) {
    return false;
  } catch (const Unsupported& no_schedule) {
    return false;
  }
}

void print(const Problem& problem, const Device& device) {
  for (const bool chained : {false, true}) {
    if (chained && !device.dependent_launch()) continue;
    std::string line = std::string(device.name) + ": " + to_string(problem) + ": ";
    try {
      const Compiled kernel = compile(problem, device, chained);
      line += to_string(kernel.schedule) + ": " + digest_of(kernel.source);
    } catch (const Unsupported& none) {
      line += "none";
    }
    std::puts(line.c_str());
  }
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  using namespace ladder;
  const std::size_t part = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const std::size_t stride = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::optional<RoundedX> kinds_of_x[] = {std::nullopt, Scalar::s8, Scalar::e4m3,
                                                RoundedX(Scalar::e4m3, true)};
  std::size_t index = 0;
  for (const auto& stratum : testing::strata()) {
    for (auto [device, problem, tokens] : stratum.cells) {
      if (index++ % stride != part) continue;
      for (const auto& x : kinds_of_x) {
        problem.round_x(x);
        if (x && !multiplies(problem, *device)) continue;
        for (const auto m : tokens) {
          problem.m = m;
          print(problem, *device);
        }
      }
    }
  }
}
