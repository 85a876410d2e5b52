// SPDX-License-Identifier: Apache-2.0
// What an op refused, for Python to raise as a ValueError where torch does not.
#include "binding/torch/stable.h"

namespace ladder::binding {

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) { m.def("take_refusal() -> str"); }

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("take_refusal", TORCH_BOX(&stable::take_refusal));
}

}  // namespace ladder::binding
