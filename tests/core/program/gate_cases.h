// SPDX-License-Identifier: Apache-2.0
//
// Layers whose product of gate and up is an epilogue, or a function of their sums, or which add a
// residual, or whose y are codes, in every pipeline. Internal to the tests.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "expr/reference.h"
#include "pipelines/lower.h"
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

inline constexpr std::array kFunctions = {Gated::relu,      Gated::silu,  Gated::gelu,
                                          Gated::gelu_tanh, Gated::relu2, Gated::quick_gelu};

/// Of each `step` cases that lowering has, with functions of their sums in turn.
template <class Cases>
void add_activated(std::vector<std::pair<Problem, Schedule>>& out, const Cases& cases,
                   const Device& device, std::size_t step = 1) {
  std::size_t turn = 0;
  for (const auto& [of_case, schedule] : cases) {
    if (turn++ % step != 0) continue;
    Problem problem = of_case;
    problem.set_activation_function(kFunctions[out.size() % kFunctions.size()]);
    problem.set_bias(out.size() % 4 != 0);
    if (!objection(schedule, decide(problem, device)).empty()) continue;
    out.emplace_back(problem, schedule);
  }
}

/// The same with a residual, behind a bias and a function in turns.
template <class Cases>
void add_residuals(std::vector<std::pair<Problem, Schedule>>& out, const Cases& cases,
                   const Device& device, std::size_t step = 1) {
  std::size_t turn = 0;
  for (const auto& [of_case, schedule] : cases) {
    if (turn++ % step != 0) continue;
    Problem problem = of_case;
    problem.set_residual(true);
    problem.set_bias(out.size() % 2 != 0);
    if (out.size() % 4 == 3) problem.set_activation_function(Gated::relu);
    if (!objection(schedule, decide(problem, device)).empty()) continue;
    out.emplace_back(problem, schedule);
  }
}

/// The same with y as codes, of both kinds in turns, behind a bias and a function in turns.
template <class Cases>
void add_quantised(std::vector<std::pair<Problem, Schedule>>& out, const Cases& cases,
                   const Device& device, std::size_t step = 1) {
  std::size_t turn = 0;
  for (const auto& [of_case, schedule] : cases) {
    if (turn++ % step != 0) continue;
    Problem problem = of_case;
    problem.quantise_y(out.size() % 2 == 0 ? Scalar::s8 : Scalar::e4m3);
    problem.set_bias(out.size() % 3 != 0);
    if (out.size() % 5 == 4) problem.set_activation_function(Gated::relu);
    if (!objection(schedule, decide(problem, device)).empty()) continue;
    out.emplace_back(problem, schedule);
  }
}

/// The interpreter gives y within the bound, where y is finite in its format.
inline void expect_right(const Problem& problem, const Schedule& schedule, const Device& on,
                         const LinearCase& data) {
  const Program program = lower(decide(problem, on), schedule);
  ASSERT_NO_THROW(verify(program, on.shared_per_block_bytes))
      << to_string(problem) << "; " << to_string(schedule);
  const auto y = data.run(program, schedule);
  const auto reference = evaluate(problem, data.data);
  ASSERT_EQ(y.size(), static_cast<std::size_t>(data.m * problem.columns_of_y()));
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (std::fabs(reference.y[i]) > data.largest()) continue;
    ASSERT_LE(std::fabs(y[i] - reference.y[i]), data.bound(reference, i))
        << to_string(problem) << "; " << to_string(schedule) << "; y[" << i << "] is " << y[i]
        << ", not " << reference.y[i];
  }
}

}  // namespace ladder::testing
