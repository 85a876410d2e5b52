// SPDX-License-Identifier: Apache-2.0
#include "expr/gating.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/joined.h"

namespace ladder {
namespace {

struct Named {
  std::string_view name;
  Gated what;
};
constexpr Named kNames[] = {{"gelu", Gated::gelu},
                            {"gelu_pytorch_tanh", Gated::gelu_tanh},
                            {"linear", Gated::linear},
                            {"mish", Gated::mish},
                            {"quick_gelu", Gated::quick_gelu},
                            {"relu", Gated::relu},
                            {"relu2", Gated::relu2},
                            {"sigmoid", Gated::sigmoid},
                            {"silu", Gated::silu},
                            {"swigluoai", Gated::swiglu_oai},
                            {"tanh", Gated::tanh}};

template <class Number>
Number sigmoid(Number v) {
  return Number(1) / (Number(1) + std::exp(-v));
}

// In the order of codegen/gated_product.cpp, so that results on the host are the same bits.
template <class Number>
Number product(const Gating& gating, Number gate, Number up) {
  const auto limit = static_cast<Number>(gating.limit);
  gate = std::fmin(gate, limit);
  up = std::fmin(std::fmax(up, -limit), limit);
  const Number zero = 0;
  switch (gating.what) {
    case Gated::gelu:
      return Number(0.5) * gate * (Number(1) + std::erf(gate * Number(0.70710678f))) * up;
    case Gated::gelu_tanh:
      return gate * sigmoid(Number(1.5957691f) * (gate + Number(0.044715f) * gate * gate * gate)) *
             up;
    case Gated::linear: return gate * up;
    case Gated::mish:
      return gate * std::tanh(gate > Number(20) ? gate : std::log1p(std::exp(gate))) * up;
    case Gated::quick_gelu: return gate * sigmoid(Number(1.702f) * gate) * up;
    case Gated::relu: return std::fmax(gate, zero) * up;
    case Gated::relu2: return std::fmax(gate, zero) * std::fmax(gate, zero) * up;
    case Gated::sigmoid: return sigmoid(gate) * up;
    case Gated::silu: return gate * sigmoid(gate) * up;
    case Gated::swiglu_oai:
      return gate * sigmoid(static_cast<Number>(gating.alpha) * gate) * (up + Number(1));
    case Gated::tanh: return std::tanh(gate) * up;
  }
  fail<InternalError>("a gate without a meaning");
}

}  // namespace

std::optional<Gated> gated_called(std::string_view name) {
  const auto found = std::ranges::find(kNames, name, &Named::name);
  return found == std::end(kNames) ? std::nullopt : std::optional(found->what);
}

std::string_view name_of(Gated what) { return std::ranges::find(kNames, what, &Named::what)->name; }

std::string to_string(const Gating& gating) {
  std::string out(name_of(gating.what));
  if (std::isfinite(gating.limit)) out += joined(" limit ", gating.limit);
  if (gating.what == Gated::swiglu_oai) out += joined(" alpha ", gating.alpha);
  return out;
}

float gated(const Gating& gating, float gate, float up) { return product(gating, gate, up); }
double gated(const Gating& gating, double gate, double up) { return product(gating, gate, up); }

}  // namespace ladder
