// SPDX-License-Identifier: Apache-2.0
//
// Layers whose product of gate and up is an epilogue, in every pipeline. Internal to the tests.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "program/linear_case.h"
#include "program/tile_cases.h"
#include "program/wave_cases.h"

namespace ladder::testing {

inline constexpr std::array<Gating, 5> kGatings = {{{},
                                                    {.what = Gated::swiglu_oai, .limit = 7},
                                                    {.what = Gated::gelu_tanh},
                                                    {.what = Gated::relu2, .limit = 30},
                                                    {.what = Gated::gelu}}};

/// Of each `step` cases that lowering has, those whose CTAs have gate and up, gates in turn.
template <class Cases>
void add_gated(std::vector<std::pair<Problem, Schedule>>& out, const Cases& cases,
               const Device& device, std::size_t step = 1) {
  std::size_t turn = 0;
  for (const auto& [of_case, schedule] : cases) {
    if (turn++ % step != 0) continue;
    Problem problem = of_case;
    if (problem.n % (2 * kGateRows) != 0) problem.n = round_up(problem.n, 2 * kGateRows);
    problem.set_gate(kGatings[out.size() % kGatings.size()]);
    problem.set_bias(out.size() % 3 == 0);
    if (!objection(schedule, decide(problem, device)).empty()) continue;
    out.emplace_back(problem, schedule);
  }
}

}  // namespace ladder::testing
