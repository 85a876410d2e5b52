// SPDX-License-Identifier: Apache-2.0
//
// The text of kernels of activations of 8 bits, run on this processor.
#include <gtest/gtest.h>

#include <vector>

#include "linear_emulated.h"
#include "program/tile_cases.h"

namespace ladder {
namespace {

using testing::Case;
using testing::expect_exact;

// Activations that come as bytes, by single warps and by warpgroups.
TEST(Emulated, kernels_of_bytes_are_exact) {
  std::vector<Case> cases;
  unsigned turn = 0;
  for (const char* type : {"uint4,group=128,scale=float16", "ternary,group=128", "int8,channel",
                           "uint3,group=64,zero=integer", "float8_e4m3,channel", "mxfp4"}) {
    const bool floats = ttype(type).element->encoding == Encoding::floating;
    const auto add = [&](const auto& shape, bool warpgroups) {
      ++turn;
      for (auto& [expr, schedule] :
           testing::tile_case(shape, ttype(type), turn % 2 == 0 ? Scalar::f16 : Scalar::bf16,
                              static_cast<Reduction>(turn % 3), Route::bytes, turn % 4 == 0, 4,
                              warpgroups, floats ? Scalar::e4m3 : Scalar::s8)) {
        cases.push_back({expr, schedule});
      }
    };
    for (const auto& shape : testing::kByteShapes) add(shape, true);
    for (std::size_t i = 0; i < 4; ++i) add(testing::kTileShapes[(turn + 3 * i) % 10], false);
  }
  ASSERT_GE(cases.size(), 30U);
  expect_exact(cases, device("h200"));
}

}  // namespace
}  // namespace ladder
