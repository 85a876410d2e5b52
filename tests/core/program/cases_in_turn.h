// SPDX-License-Identifier: Apache-2.0
// Layers of every shape of schedule and reduction. Internal to the tests.
#pragma once

#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "expr/constructors.h"
#include "pipelines/schedule.h"
#include "types/ttype.h"

namespace ladder::testing {

/// What make(shape, type, activation, reduction, turn) gives for each shape and reduction, types
/// and what else a layer has in turn.
template <class S, class Shapes, class Make>
std::vector<std::pair<Problem, S>> cases_in_turn(const Shapes& shapes,
                                                 std::initializer_list<Reduction> reductions,
                                                 const Make& make) {
  constexpr std::array kTypes = {"uint4,group=32,scale=float16,zero=midpoint",
                                 "uint4,group=128,scale=float16,zero=midpoint",
                                 "uint8,channel,scale=float32",
                                 "nf4",
                                 "mxfp4",
                                 "uint2,group=64,scale=float16,zero=integer",
                                 "float6_e3m2"};
  std::vector<std::pair<Problem, S>> out;
  unsigned turn = 0;
  for (const auto& shape : shapes) {
    for (const auto reduction : reductions) {
      for (const char* type : {kTypes[turn % kTypes.size()], kTypes[(turn + 3) % kTypes.size()]}) {
        const auto activation = ++turn % 2 == 0 ? Scalar::f16 : Scalar::bf16;
        for (auto& [problem, schedule] : make(shape, ttype(type), activation, reduction, turn)) {
          problem.set_bias(turn % 2 == 0), problem.permuted_columns = turn % 5 == 0;
          out.emplace_back(problem, schedule);
        }
      }
    }
  }
  return out;
}

}  // namespace ladder::testing
