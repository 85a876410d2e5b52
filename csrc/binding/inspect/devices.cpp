// SPDX-License-Identifier: Apache-2.0
// ladder._C.devices: the rows of csrc/device/, and what of them this machine has.
#include "binding/inspect/inspect.h"
#include "codegen/target.h"
#include "device/device.h"
#include "runtime/device_row.h"

namespace ladder::inspect {
namespace {

using python::arg;
using python::fn;

/// Name, architecture, family, multiprocessors, bytes and bytes per second of its memory, bytes of
/// L2, 16-bit operations per second, and why no kernels are compiled for it; empty: they are.
using Row = std::tuple<std::string, std::string, std::string, int, double, double, double, double,
                       std::string>;

std::string name(Family family) {
  switch (family) {
    case Family::nvidia: return "nvidia";
    case Family::cdna: return "cdna";
    case Family::x86: return "x86";
  }
  return {};
}

Row row_of(const Device& d) {
  return {std::string(d.name),
          std::string(d.architecture),
          name(d.family),
          d.multiprocessors,
          d.global.capacity_bytes,
          d.global.bytes_per_second,
          d.l2.capacity_bytes,
          d.f16_flops,
          no_target(d)};
}

std::vector<Row> rows() {
  std::vector<Row> found;
  for (const Device& device : devices()) found.push_back(row_of(device));
  return found;
}

using Language = std::tuple<std::string, bool, std::string, std::vector<std::string>>;

std::vector<Language> languages() {
  std::vector<Language> found;
  for (const Target& target : targets()) {
    found.emplace_back(target.name, target.driver.present(), target.toolchain.version(""),
                       target.toolchain.architectures());
  }
  return found;
}

}  // namespace

void add_devices(python::Module& module) {
  python::Module m =
      module.submodule("devices", "What ladder knows of machines, and finds on this one.");
  m.def(
      "rows", fn<&rows>,
      "Every row by name: name, architecture, family, multiprocessors, bytes and bytes per second "
      "of its memory, bytes of L2, 16-bit operations per second, and why no kernels are compiled "
      "for it; empty: they are.");
  m.def(
      "found", [](int ordinal) { return row_of(device_row(ordinal)); },
      "The row that stands for a GPU of this machine. NotImplementedError: none does.",
      arg("ordinal"));
  m.def("targets", fn<&languages>,
        "Languages of kernels: name, whether this machine has the driver of its devices, its "
        "compiler (\"nvrtc 13.0\"; empty where there is none) and what that compiles for; empty "
        "where it does not say.");
}

}  // namespace ladder::inspect
