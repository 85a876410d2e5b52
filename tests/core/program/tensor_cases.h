// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels with operands and sums in tensor memory, and the device that they are for. Internal
// to the tests.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "expr/constructors.h"
#include "pipelines/schedule.h"
#include "types/ttype.h"

namespace ladder::testing {

/// A B200 whose user asks for what nobody has run.
inline const Device& unproven_b200() {
  static const Device row = [] {
    Device out = device("b200");
    out.unproven = true;
    return out;
  }();
  return row;
}

/// Shapes: [rows, tokens, warps, token tiles, stages]. Sums are brought by 16, 32 and 64 tokens.
constexpr std::array<std::array<int, 5>, 4> kTensorShapes = {
    {{128, 80, 4, 1, 3}, {256, 48, 8, 2, 3}, {128, 96, 4, 1, 4}, {128, 64, 4, 2, 3}}};

/// A schedule of that shape for the type, or nothing where the tile objects: scales of groups in
/// rounded operands, those of rows where they multiply once.
inline std::vector<std::pair<Problem, TileSchedule>> tensor_case(const std::array<int, 5>& shape,
                                                                 const TType& type,
                                                                 Scalar activation,
                                                                 Reduction reduction,
                                                                 bool dependent, int k_tiles = 3) {
  const auto& [rows, tokens, warps, token_tiles, stages] = shape;
  constexpr int kColumns = 128;
  k_tiles = std::max(k_tiles, stages);
  TileSchedule s{.rows = rows,
                 .tokens = tokens,
                 .columns = kColumns,
                 .warps_n = warps,
                 .warps_m = 1,
                 .k_tiles = k_tiles,
                 .stages = stages,
                 .reduction = reduction,
                 .route = Route::multiply_add,
                 .dependent_launch = dependent,
                 .ctas_per_sm = 1,
                 .token_tiles = token_tiles,
                 .warpgroups = true,
                 .producers = true,
                 .tensor_memory = true};
  // The last rows, and the last columns of the last part, are no whole tiles.
  const auto k = kColumns * k_tiles * (reduction == Reduction::none ? 1 : 2) - 32;
  const Problem problem = linear_of(type, rows + 40, k, activation, tokens * token_tiles - 3);
  if (problem.groups() > 1) s.scale_place = ScalePlace::rounded;
  if (problem.groups() > 1 && problem.group_size() > kColumns) s.k_tiles = (k_tiles + 1) / 2 * 2;
  if (!objection(s, decide(problem, unproven_b200())).empty()) return {};
  return {{problem, s}};
}

/// Types of every kind of codes, with scales of what activations are.
constexpr const char* kTensorTypes[] = {"uint4,group=128",
                                        "int3,group=32",
                                        "uint4,group=64,zero=integer",
                                        "uint8,channel,scale=float32",
                                        "nf4,group=64",
                                        "float6_e3m2,group=128",
                                        "uint5,group=64",
                                        "mxfp4",
                                        "uint2,group=256",
                                        "nvfp4"};

/// Each type at so many shapes, with what else a layer has in turn.
inline std::vector<std::pair<Problem, TileSchedule>> tensor_cases(int k_tiles = 3,
                                                                  unsigned shapes_of_type = 2) {
  std::vector<std::pair<Problem, TileSchedule>> out;
  unsigned turn = 0;
  for (const std::string text : kTensorTypes) {
    for (unsigned i = 0; i < shapes_of_type; ++i, ++turn) {
      // float16 does not have the scales of e8m0.
      const bool f16 = turn % 2 == 0 && text != "mxfp4";
      const Scalar activation = f16 ? Scalar::f16 : Scalar::bf16;
      const bool own = text.find("scale=") != text.npos || text.find(',') == text.npos;
      const std::string scale = activation == Scalar::f16 ? "float16" : "bfloat16";
      const TType& type = ttype(own ? text : text + ",scale=" + scale);
      for (auto& [problem, s] :
           tensor_case(kTensorShapes[turn % kTensorShapes.size()], type, activation,
                       static_cast<Reduction>(turn % 3), turn % 4 == 1, k_tiles)) {
        problem.set_bias(turn % 3 == 0);
        out.emplace_back(problem, s);
      }
    }
  }
  return out;
}

}  // namespace ladder::testing
