// SPDX-License-Identifier: Apache-2.0
//
// Kernels that end with a product of gate and up, an activation function or codes: of the first
// choices one compiles without spills, for every function, by warps and by warpgroups.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>

#include "expr/constructors.h"
#include "some_kernel.h"

namespace ladder {
namespace {

using testing::expect_a_kernel;

constexpr Gated kAll[] = {Gated::gelu,       Gated::gelu_tanh,  Gated::linear, Gated::mish,
                          Gated::quick_gelu, Gated::relu,       Gated::relu2,  Gated::sigmoid,
                          Gated::silu,       Gated::swiglu_oai, Gated::tanh};

/// Each function once for each device, with tokens and types in turn.
template <class Set>
void expect_kernels(const Set& set) {
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
      if (set(problem, what)) expect_a_kernel(problem, device(name));
    }
  }
}

TEST(Epilogue, products_of_gate_and_up_compile_without_spills) {
  expect_kernels([](Problem& problem, Gated what) {
    problem.set_gate(Gating{.what = what, .limit = what == Gated::swiglu_oai ? 7.0f : HUGE_VALF});
    return true;
  });
}

TEST(Epilogue, activation_functions_compile_without_spills) {
  expect_kernels([](Problem& problem, Gated what) {
    problem.set_activation_function(what);
    return takes_gate_alone(what) && what != Gated::linear;
  });
}

TEST(Epilogue, residuals_compile_without_spills) {
  expect_kernels([](Problem& problem, Gated what) {
    problem.set_residual(true);
    if (what == Gated::gelu) problem.set_activation_function(what);
    return true;
  });
}

TEST(Epilogue, codes_compile_without_spills) {
  expect_kernels([](Problem& problem, Gated what) {
    problem.quantise_y(what == Gated::gelu || what == Gated::silu ? Scalar::s8 : Scalar::e4m3);
    if (takes_gate_alone(what)) problem.set_activation_function(what);
    return true;
  });
}

}  // namespace
}  // namespace ladder
