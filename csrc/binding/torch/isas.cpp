// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the CPU kernels have, and which of them is in use.
#include "binding/torch/tensors.h"

namespace ladder::binding {
namespace {

std::string built_cpu_isas() {
  std::string names;
  for (const cpu::Isa isa : cpu::built_isas())
    names += (names.empty() ? "" : " ") + std::string(cpu::name(isa));
  return names;
}

std::string cpu_isa_name() { return std::string(cpu::name(cpu_isa())); }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(ladder, m) {
  m.def("built_cpu_isas() -> str");
  m.def("cpu_isa() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(ladder, CompositeExplicitAutograd, m) {
  m.impl("built_cpu_isas", TORCH_BOX(&built_cpu_isas));
  m.impl("cpu_isa", TORCH_BOX(&cpu_isa_name));
}

}  // namespace ladder::binding
