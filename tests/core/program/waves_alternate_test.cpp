// SPDX-License-Identifier: Apache-2.0
//
// Waves of which one of each SIMD multiplies while the other moves data.
#include <gtest/gtest.h>

#include <utility>

#include "program/alternate_cases.h"
#include "program/kinds_of_types.h"
#include "program/wave_exact.h"

namespace ladder {
namespace {

using testing::alternate_case;
using testing::kAlternatingShapes;

// Each type in another shape, for each device another one.
TEST(AlternatingWaves, multiply_every_type_exactly) {
  unsigned turn = 0, types = 0;
  for (const char* name : {"mi210", "mi300x", "mi355x"}) {
    for (const char* type : testing::kKindsOfTypes) {
      const auto reduction = ++turn % 3 == 0 ? Reduction::ordered : Reduction::none;
      unsigned kept = 0;
      for (unsigned i = turn; i < turn + 2 * kAlternatingShapes.size() && kept == 0; ++i) {
        const auto& shape = kAlternatingShapes[i % kAlternatingShapes.size()];
        for (const auto place : {ScalePlace::usual, ScalePlace::rounded}) {
          try {
            for (auto [problem, schedule] : alternate_case(
                     shape, ttype(type), i % 2 == 0 ? Scalar::f16 : Scalar::bf16, reduction,
                     Route::multiply_add, device(name), 2 + turn % 2, {}, place)) {
              problem.set_bias(turn % 2 == 0);
              testing::expect_exact(problem, schedule, device(name), turn);
              ++kept;
            }
          } catch (const Unsupported&) {
            continue;  // wider than float16
          }
        }
      }
      types += kept > 0 ? 1 : 0;
    }
  }
  EXPECT_GE(types, 45U);  // of 57; two waves of a SIMD have too few registers for others
}

// A k-tile of as few as two steps.
TEST(AlternatingWaves, multiply_bytes_exactly) {
  unsigned turn = 0, kept = 0;
  for (const char* name : {"mi210", "mi300x", "mi355x"}) {
    for (const auto x : {Scalar::s8, Scalar::e4m3}) {
      if (tile_instruction(x, device(name)) == nullptr) continue;
      for (const char* type : {"uint4,group=128,scale=float16,zero=integer", "int8,channel",
                               "uint2,group=64,scale=float16"}) {
        for (const auto& [problem, schedule] :
             testing::some_alternate_case(++turn, ttype(type), Scalar::f16, Reduction::none,
                                          Route::bytes, device(name), 4, x)) {
          testing::expect_exact(problem, schedule, device(name), turn);
          ++kept;
        }
      }
    }
  }
  EXPECT_GE(kept, 8U);
}

}  // namespace
}  // namespace ladder
