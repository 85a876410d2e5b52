// SPDX-License-Identifier: Apache-2.0
//
// Kernels for the row of the T4, small enough to run without a device. Internal to the tests.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "expr/of_ttype.h"
#include "pipelines/schedule.h"
#include "program/kinds_of_types.h"
#include "program/linear_case.h"
#include "program/tile_cases.h"

namespace ladder::testing {

using Scheduled = std::pair<Linear, Schedule>;

/// Of the shapes of schedules that other devices have, those that the T4 takes.
inline std::vector<Scheduled> turing_shapes() {
  std::vector<Scheduled> out;
  const auto add = [&](const Linear& expr, auto schedule) {
    if (expr.activation != Scalar::f16) return;
    schedule.dependent_launch = false;
    const std::pair found{expr, Schedule{schedule}};
    const bool is_new = std::ranges::none_of(out, [&](const Scheduled& each) {
      return each.second == found.second && to_string(each.first) == to_string(expr);
    });
    if (is_new && objection(found.second, decide(expr, device("t4"))).empty()) out.push_back(found);
  };
  for (const auto& [expr, schedule] : lowered_cases()) add(expr, schedule);
  for (const auto& [expr, schedule] : tile_cases(4)) add(expr, schedule);
  return out;
}

/// Products of bytes: activations that come rounded, and digits of one token.
inline std::vector<Scheduled> turing_bytes() {
  std::vector<Scheduled> out;
  unsigned turn = 0;
  for (const char* type : {"uint4,group=128,scale=float16", "ternary,group=128", "int8,channel",
                           "uint3,group=64,zero=integer"}) {
    for (std::size_t i = 0; i < 3; ++i) {
      ++turn;
      for (const auto& [expr, schedule] :
           tile_case(kTileShapes[(turn + 3 * i) % kTileShapes.size()], ttype(type), Scalar::f16,
                     turn % 2 == 0 ? Reduction::none : Reduction::ordered, Route::bytes, false, 4,
                     false, Scalar::s8)) {
        if (objection(schedule, decide(expr, device("t4"))).empty())
          out.push_back({expr, schedule});
      }
    }
  }
  for (const char* type : {"uint1,channel,scale=float16", "uint2,group=64,scale=float16"}) {
    const Linear expr = linear_of(ttype(type), 200, 2048, Scalar::f16, 1);
    for (const Candidate& each : candidates(decide(expr, device("t4")))) {
      if (!each.dropped.empty() || is_dense(each.schedule)) continue;
      if (route_of(each.schedule) != Route::digits) continue;
      out.push_back({expr, each.schedule});
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
      Linear expr =
          linear_of(ttype(type), m == 16 ? 130 : 100, m == 16 ? 1024 : 328, Scalar::f16, m);
      expr.bias = out.size() % 2 == 0, expr.gather = out.size() % 3 == 0;
      const auto schedule = best_schedule(decide(expr, device("t4")));
      if (!is_dense(schedule)) out.push_back({expr, schedule});
    }
  }
  return out;
}

}  // namespace ladder::testing
