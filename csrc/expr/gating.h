// SPDX-License-Identifier: Apache-2.0
//
// The product of gate and up, which gated layers have between their two products.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace ladder {

/// The function of the gate, by the names of ladder/ops/gating.py.
enum class Gated {
  gelu,
  gelu_tanh,
  linear,
  mish,
  quick_gelu,
  relu,
  relu2,
  sigmoid,
  silu,
  swiglu_oai,  ///< gate sigmoid(alpha gate), times up + 1
  tanh,
};
/// Whether it is a function of the gate, times up, so that it means something by itself.
constexpr bool takes_gate_alone(Gated what) { return what != Gated::swiglu_oai; }
/// "gelu", "gelu_pytorch_tanh", ..., "swigluoai"; nothing for another.
std::optional<Gated> gated_called(std::string_view name);
std::string_view name_of(Gated what);

/// The gate is clamped to at most `limit` and up to [-limit, limit] first; `alpha` is read by
/// swiglu_oai alone.
struct Gating {
  Gated what = Gated::silu;
  float limit = std::numeric_limits<float>::infinity();
  float alpha = 1.702f;
  bool operator==(const Gating&) const = default;
};
/// "silu", "swigluoai limit 7 alpha 1.702".
std::string to_string(const Gating& gating);

/// As kernels compute it, in f32, but for their e^x and quotients, which are a few ulps from right.
float gated(const Gating& gating, float gate, float up);
/// The same in double.
double gated(const Gating& gating, double gate, double up);
/// The function of the gate by itself.
template <class Number>
Number activated(Gated what, Number gate) {
  return gated(Gating{.what = what}, gate, Number(1));
}

/// Rows of the gate and of up that alternate in weights whose product is gated where it is made:
/// eight of the gate, eight of up. The two halves of 16 rows are in one thread's registers.
constexpr std::int64_t kGateRows = 8;

}  // namespace ladder
