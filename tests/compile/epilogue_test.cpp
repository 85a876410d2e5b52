// SPDX-License-Identifier: Apache-2.0
//
// Kernels that end with a product of gate and up, an activation function or codes: of the first
// choices one compiles without spills, for every function, by warps and by warpgroups. A run
// compiles a part (turns.h).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>

#include "expr/constructors.h"
#include "some_kernel.h"
#include "turns.h"

namespace ladder {
namespace {

using testing::expect_a_kernel;

constexpr Gated kAll[] = {Gated::gelu,       Gated::gelu_tanh,  Gated::linear, Gated::mish,
                          Gated::quick_gelu, Gated::relu,       Gated::relu2,  Gated::sigmoid,
                          Gated::silu,       Gated::swiglu_oai, Gated::tanh};

/// Each function once for each device, with tokens and types in turn.
template <class Set>
void expect_kernels(const Set& set, testing::Turns& turns) {
  constexpr std::int64_t kTokens[] = {1, 16, 64};
  constexpr const char* kTypes[] = {"uint4,group=128,scale=float16,zero=midpoint",
                                    "float6_e3m2,group=64,scale=bfloat16", "nvfp4"};
  std::size_t turn = 0;
  for (const char* name : {"a100", "h200", "b200"}) {
    for (const Gated what : kAll) {
      const bool many = name == std::string("h200") && turn % 2 == 0;  // warpgroups
      const char* type = kTypes[many ? 0 : turn / 2 % std::size(kTypes)];
      Problem problem =
          linear_of(ttype(type), 14336, 4096, turn % 2 == 0 ? Scalar::f16 : Scalar::bf16,
                    many ? 512 : kTokens[turn % std::size(kTokens)]);
      problem.set_bias(turn % 5 == 0);
      ++turn;
      if (set(problem, what) && turns.next()) expect_a_kernel(problem, device(name));
    }
  }
}

bool set_gate(Problem& problem, Gated what) {
  problem.set_gate(Gating{.what = what, .limit = what == Gated::swiglu_oai ? 7.0f : HUGE_VALF});
  return true;
}

bool set_function(Problem& problem, Gated what) {
  problem.set_activation_function(what);
  return takes_gate_alone(what) && what != Gated::linear;
}

bool set_residual(Problem& problem, Gated what) {
  problem.set_residual(true);
  if (what == Gated::gelu) problem.set_activation_function(what);
  return true;
}

bool set_codes(Problem& problem, Gated what) {
  problem.quantise_y(what == Gated::gelu || what == Gated::silu ? Scalar::s8 : Scalar::e4m3);
  if (takes_gate_alone(what)) problem.set_activation_function(what);
  return true;
}

void expect_no_spills(testing::Turns turns) {
  for (const auto set : {set_gate, set_function, set_residual, set_codes})
    expect_kernels(set, turns);
}

TEST(Epilogue, compiles_without_spills) { expect_no_spills(testing::Turns(4)); }

TEST(DISABLED_WholeEpilogue, compiles_without_spills) { expect_no_spills(testing::Turns(1)); }

}  // namespace
}  // namespace ladder
