// SPDX-License-Identifier: Apache-2.0
// ladder._C.devices: the rows of csrc/device/, and what of them this machine has.
#include <algorithm>

#include "base/error.h"
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
    case Family::rdna: return "rdna";
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

/// Name, unit, what was measured and what the row has; 0: nothing.
using Number = std::tuple<std::string, std::string, double, double>;
/// What the machine is filed under, the file that is in use, why none is, what is said of it, and
/// its numbers.
using Calibrated =
    std::tuple<std::string, std::string, std::string,
               std::vector<std::tuple<std::string, std::string>>, std::vector<Number>>;

Calibrated calibration(int ordinal) {
  const CalibratedRow& found = calibrated_row(ordinal);
  Calibrated out{found.machine, found.path, found.why, {}, {}};
  for (const auto& [what, text] : found.calibration.about)
    std::get<3>(out).emplace_back(what, text);
  for (const CalibrationField& field : calibration_fields()) {
    std::get<4>(out).emplace_back(field.name, field.unit, field.get(found.calibration.numbers),
                                  number_of_row(*found.bare, field));
  }
  return out;
}

void write(int ordinal, const std::string& path,
           const std::vector<std::tuple<std::string, double>>& numbers,
           const std::vector<std::tuple<std::string, std::string>>& about) {
  StoredCalibration made;
  for (const auto& [name, value] : numbers) {
    const auto fields = calibration_fields();
    const auto field = std::ranges::find(fields, name, &CalibrationField::name);
    LADDER_REQUIRE(field != fields.end(), "a calibration has no field called ", name);
    field->of(made.numbers) = value;
  }
  for (const auto& [what, text] : about) made.about[what] = text;
  const CalibratedRow& found = calibrated_row(ordinal);
  write_calibration(path.empty() ? calibration_path() : path, found.machine, *found.bare, made);
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
  m.def("calibration", fn<&calibration>,
        "Of a GPU of this machine: what its calibration is filed under; the file that is in use, "
        "and why none is, empty where there is neither; pairs that are said of it; and of each "
        "field name, unit, what was measured and what the row has, 0 for nothing.",
        arg("ordinal"));
  m.def("write_calibration", fn<&write>,
        "Adds a calibration of a GPU of this machine to a file; \"\": that of the user's cache. "
        "ValueError: numbers that no such machine has, or a file of something else. In use from "
        "the next process on.",
        arg("ordinal"), arg("path"), arg("numbers"), arg("about"));
  m.def("calibration_path", fn<&calibration_path>, "The file of the user's cache.");
  m.def("targets", fn<&languages>,
        "Languages of kernels: name, whether this machine has the driver of its devices, its "
        "compiler (\"nvrtc 13.0\"; empty where there is none) and what that compiles for; empty "
        "where it does not say.");
}

}  // namespace ladder::inspect
