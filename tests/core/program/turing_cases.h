// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the T4, small enough to run without a device. Internal to the tests.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "expr/constructors.h"
#include "pipelines/schedule.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/tile_cases.h"

namespace ladder::testing {

using Scheduled = std::pair<Problem, Schedule>;

/// Of the shapes of schedules that other devices have, those that the T4 takes.
inline std::vector<Scheduled> turing_shapes() {
  std::vector<Scheduled> out;
  const auto add = [&](const Problem& problem, auto schedule) {
    if (problem.activation() != Scalar::f16) return;
    schedule.dependent_launch = false;
    const std::pair found{problem, Schedule{schedule}};
    const bool is_new = std::ranges::none_of(out, [&](const Scheduled& each) {
      return each.second == found.second && to_string(each.first) == to_string(problem);
    });
    if (is_new && objection(found.second, decide(problem, device("t4"))).empty())
      out.push_back(found);
  };
  for (const auto& [problem, schedule] : lowered_cases()) add(problem, schedule);
  for (const auto& [problem, schedule] : tile_cases(4)) add(problem, schedule);
  return out;
}

/// Products of bytes: activations that come rounded, and digits of one token.
inline std::vector<Scheduled> turing_bytes() {
  std::vector<Scheduled> out;
  unsigned turn = 0;
  for (const char* type : {"uint4,group=128,scale=float16", "ternary,group=128", "int8,channel",
                           "uint3,group=64,zero=integer",
                           "uint4,group=16,scale=uint4,zero=midpoint,scale2=float32:channel",
                           "ternary,group=64,scale=uint6,scale2=float32:channel"}) {
    for (std::size_t i = 0; i < 3; ++i) {
      ++turn;
      for (const auto& [problem, schedule] :
           tile_case(kTileShapes[(turn + 3 * i) % kTileShapes.size()], ttype(type), Scalar::f16,
                     turn % 2 == 0 ? Reduction::none : Reduction::ordered, Route::bytes, false, 4,
                     false, Scalar::s8)) {
        if (objection(schedule, decide(problem, device("t4"))).empty())
          out.push_back({problem, schedule});
      }
    }
  }
  for (const char* type : {"uint1,channel,scale=float16", "uint2,group=64,scale=float16"}) {
    const Problem problem = linear_of(ttype(type), 200, 2048, Scalar::f16, 1);
    for (const Candidate& each : candidates(decide(problem, device("t4")))) {
      if (!each.dropped.empty() || is_dense(each.schedule)) continue;
      if (route_of(each.schedule) != Route::digits) continue;
      out.push_back({problem, each.schedule});
      break;
    }
  }
  return out;
}

/// The first choice for types of every kind, for few tokens and for tiles, some with a bias, some
/// with permuted columns.
inline std::vector<Scheduled> turing_choices() {
  std::vector<Scheduled> out;
  for (const char* type : kKindsOfTypes) {
    for (const std::int64_t m : {1, 16, 100}) {
      Problem problem =
          linear_of(ttype(type), m == 16 ? 130 : 100, m == 16 ? 1024 : 328, Scalar::f16, m);
      problem.set_bias(out.size() % 2 == 0), problem.permuted_columns = out.size() % 3 == 0;
      const auto schedule = best_schedule(decide(problem, device("t4")));
      if (!is_dense(schedule)) out.push_back({problem, schedule});
    }
  }
  return out;
}

}  // namespace ladder::testing
