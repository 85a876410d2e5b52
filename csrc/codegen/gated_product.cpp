// SPDX-License-Identifier: Apache-2.0
#include "codegen/gated_product.h"

#include "base/error.h"

namespace ladder {

std::string_view gated_product(Gated what) {
  switch (what) {
    case Gated::gelu: return "0.5f * gate * (1.0f + erff(gate * 0.70710678f)) * up";
    case Gated::gelu_tanh:
      return "gate * sigmoid(1.5957691f * (gate + 0.044715f * gate * gate * gate)) * up";
    case Gated::linear: return "gate * up";
    case Gated::mish: return "gate * tanhf(gate > 20.0f ? gate : log1pf(__expf(gate))) * up";
    case Gated::quick_gelu: return "gate * sigmoid(1.702f * gate) * up";
    case Gated::relu: return "fmaxf(gate, 0.0f) * up";
    case Gated::relu2: return "fmaxf(gate, 0.0f) * fmaxf(gate, 0.0f) * up";
    case Gated::sigmoid: return "sigmoid(gate) * up";
    case Gated::silu: return "gate * sigmoid(gate) * up";
    case Gated::swiglu_oai: return "gate * sigmoid(alpha * gate) * (up + 1.0f)";
    case Gated::tanh: return "tanhf(gate) * up";
  }
  fail<InternalError>("a gate without a meaning");
}

}  // namespace ladder
