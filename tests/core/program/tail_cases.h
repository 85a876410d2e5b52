// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels with tails, small enough to run without a device. Internal to the tests.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "program/kinds_of_types.h"
#include "program/tile_cases.h"

namespace ladder::testing {

/// [rows, tokens, columns, warps along N, along M, token tiles, stages] as kTileShapes, then the
/// tiles of the tail and their splits.
struct TailShape {
  std::array<int, 7> tile;
  int tiles, splits;
};
constexpr std::array<TailShape, 4> kTailShapes = {{{{64, 24, 128, 4, 1, 2, 3}, 3, 2},
                                                   {{256, 32, 128, 8, 1, 2, 3}, 1, 3},
                                                   {{192, 24, 64, 12, 1, 1, 3}, 1, 2},
                                                   {{128, 80, 64, 8, 1, 2, 4}, 2, 3}}};

/// Of each shape some types whose values are exact, K in parts of which the last is shorter; and
/// activations of 8 bits.
inline std::vector<std::pair<Problem, TileSchedule>> tail_cases() {
  constexpr std::array kTypes = {"uint4,group=128,scale=float16", "uint8,channel,scale=float32",
                                 "uint2,group=64,scale=float16,zero=integer", "float6_e3m2",
                                 "uint4,group=32,scale=float16,zero=midpoint"};
  constexpr std::array kTypesOfBytes = {"uint4,group=128,scale=float16",
                                        "int8,channel,scale=float16", kIntegerScales};
  std::vector<std::pair<Problem, TileSchedule>> out;
  unsigned turn = 0;
  const auto add = [&](const TailShape& shape, const std::array<int, 7>& tile, const char* type,
                       Route route, std::optional<Scalar> x) {
    const auto activation = ++turn % 2 == 0 ? Scalar::f16 : Scalar::bf16;
    for (auto [problem, s] : with_producers(
             tile_case(tile, ttype(type), activation, Reduction::none, route, false, 5, true, x))) {
      s.tail_tiles = shape.tiles, s.tail_splits = shape.splits;
      problem.set_bias(turn % 2 == 0);
      if (objection(s, decide(problem, device("h200"))).empty()) out.emplace_back(problem, s);
    }
  };
  for (const TailShape& shape : kTailShapes) {
    for (const char* type : kTypes) add(shape, shape.tile, type, Route::multiply_add, {});
  }
  for (const char* type : kTypesOfBytes) {
    add(kTailShapes[1], kByteShapes[3], type, Route::bytes, Scalar::s8);
    add(kTailShapes[1], kByteShapes[3], type, Route::bytes, Scalar::e4m3);
  }
  return out;
}

}  // namespace ladder::testing
