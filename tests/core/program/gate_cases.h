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
#include "program/tail_cases.h"
#include "program/tile_cases.h"
#include "program/wave_cases.h"

namespace ladder::testing {

inline constexpr std::array<Gating, 5> kGatings = {{{},
                                                    {.what = Gated::swiglu_oai, .limit = 7},
                                                    {.what = Gated::gelu_tanh},
                                                    {.what = Gated::relu2, .limit = 30},
                                                    {.what = Gated::gelu}}};

using Made = std::vector<std::pair<Problem, Schedule>>;

/// Of each `step` cases that lowering has, those that still have kernels when `change` has been at
/// the problem, which is told how many there were before.
template <class Cases, class Change>
void add_changed(Made& out, const Cases& cases, const Device& device, std::size_t step,
                 const Change& change) {
  std::size_t turn = 0;
  for (const auto& [of_case, schedule] : cases) {
    if (turn++ % step != 0) continue;
    Problem problem = of_case;
    change(problem, out.size());
    if (!objection(schedule, decide(problem, device)).empty()) continue;
    out.emplace_back(problem, schedule);
  }
}

/// Those whose CTAs have gate and up, gates in turn.
template <class Cases>
void add_gated(Made& out, const Cases& cases, const Device& device, std::size_t step = 1) {
  add_changed(out, cases, device, step, [](Problem& problem, std::size_t before) {
    problem.n = round_up(problem.n, 2 * kGateRows);
    problem.set_gate(kGatings[before % kGatings.size()]);
    problem.set_bias(before % 3 == 0);
  });
}

inline constexpr std::array kFunctions = {Gated::relu,      Gated::silu,  Gated::gelu,
                                          Gated::gelu_tanh, Gated::relu2, Gated::quick_gelu};

/// With functions of their sums in turn.
template <class Cases>
void add_activated(Made& out, const Cases& cases, const Device& device, std::size_t step = 1) {
  add_changed(out, cases, device, step, [](Problem& problem, std::size_t before) {
    problem.set_activation_function(kFunctions[before % kFunctions.size()]);
    problem.set_bias(before % 4 != 0);
  });
}

/// With a residual, behind a bias and a function in turns.
template <class Cases>
void add_residuals(Made& out, const Cases& cases, const Device& device, std::size_t step = 1) {
  add_changed(out, cases, device, step, [](Problem& problem, std::size_t before) {
    problem.set_residual(true);
    problem.set_bias(before % 2 != 0);
    if (before % 4 == 3) problem.set_activation_function(Gated::relu);
  });
}

/// With y as codes, of both kinds in turns, behind a bias and a function in turns.
template <class Cases>
void add_quantised(Made& out, const Cases& cases, const Device& device, std::size_t step = 1) {
  add_changed(out, cases, device, step, [](Problem& problem, std::size_t before) {
    problem.quantise_y(before % 2 == 0 ? Scalar::s8 : Scalar::e4m3);
    problem.set_bias(before % 3 != 0);
    if (before % 5 == 4) problem.set_activation_function(Gated::relu);
  });
}

/// Programs of every pipeline, whose cases `add` changes as the functions above do, are exact on
/// integers; `seen` hears of the data of each.
template <class Add, class Seen>
void expect_exact_in_every_pipeline(const Add& add, const Seen& seen) {
  const auto check = [&](const char* name, const auto& cases, std::size_t least, std::size_t step) {
    const Device& on = device(name);
    Made made;
    add(made, cases, on, step);
    ASSERT_GE(made.size(), least) << name;
    unsigned seed = 0;
    for (const auto& [problem, schedule] : made) {
      ++seed;
      const auto m = seed % 2 == 0 ? problem.m : 1 + seed % problem.m;
      const auto data = LinearCase::integers(problem, m, seed);
      seen(data);
      const Program program = lower(decide(problem, on), schedule);
      ASSERT_NO_THROW(verify(program, on.shared_per_block_bytes))
          << to_string(problem) << "; " << to_string(schedule);
      ASSERT_EQ(data.objection_to(program, schedule), "")
          << to_string(problem) << "; " << m << " tokens; " << to_string(schedule);
    }
  };
  check("h200", lowered_cases(), 30, 2);
  check("h200", tile_cases(), 30, 2);
  check("h200", tail_cases(), 10, 1);
  check("mi300x", wave_cases(device("mi300x"), 3), 12, 1);
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
