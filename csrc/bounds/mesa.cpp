// SPDX-License-Identifier: Apache-2.0
#include "bounds/mesa.h"

#include <algorithm>

#include "base/error.h"

namespace ladder::bounds {

double intensity(const Curve& curve, double operations, double buffer_bytes) {
  LADDER_REQUIRE(operations > 0, operations, " operations");
  return operations / curve.at(buffer_bytes);
}

double performance(const Curve& curve, double operations, const Machine& machine,
                   double buffer_bytes) {
  LADDER_REQUIRE(machine.operations_per_second > 0 && machine.bytes_per_second > 0, "a machine of ",
                 machine.operations_per_second, " operations/s and ", machine.bytes_per_second,
                 " bytes/s");
  return std::min(machine.operations_per_second,
                  intensity(curve, operations, buffer_bytes) * machine.bytes_per_second);
}

double floor_seconds(const Curve& curve, double operations, const Machine& machine,
                     double buffer_bytes) {
  return operations / performance(curve, operations, machine, buffer_bytes);
}

AreaModel paper_area() {
  return {.total_um2 = 0.8 * 529e6,
          .um2_per_multiplier = 332.25,
          .um2_per_byte = 2.59122,
          .hertz = 0.7e9,
          .bytes_per_second = 147.8e9,
          .operations_per_multiplication = 1};
}

std::vector<Provision> provisions(const Curve& curve, double operations, const AreaModel& area,
                                  int samples) {
  LADDER_REQUIRE(samples >= 2, samples, " samples; at least 2 are needed");
  for (const double value :
       {operations, area.total_um2, area.um2_per_multiplier, area.um2_per_byte, area.hertz,
        area.bytes_per_second, area.operations_per_multiplication}) {
    LADDER_REQUIRE(value > 0, "a number of the area model is ", value, ", not positive");
  }
  LADDER_REQUIRE(!curve.points().empty(), "a curve without points");
  const double first = curve.points().front().buffer_bytes;
  const double last = area.total_um2 / area.um2_per_byte;
  LADDER_REQUIRE(first < last, "the smallest buffer is ", first, " bytes, the chip holds ", last);
  std::vector<Provision> result;
  for (int i = 0; i < samples; ++i) {
    Provision p;
    p.buffer_bytes = first + (last - first) * i / (samples - 1);
    p.share = p.buffer_bytes / last;
    p.compute_operations_per_second =
        std::max(0.0, (area.total_um2 - p.buffer_bytes * area.um2_per_byte)) /
        area.um2_per_multiplier * area.hertz * area.operations_per_multiplication;
    p.memory_operations_per_second =
        intensity(curve, operations, p.buffer_bytes) * area.bytes_per_second;
    p.operations_per_second =
        std::min(p.compute_operations_per_second, p.memory_operations_per_second);
    result.push_back(p);
  }
  return result;
}

Provision best_provision(const std::vector<Provision>& provisions) {
  LADDER_REQUIRE(!provisions.empty(), "no provisions to choose from");
  return *std::ranges::max_element(provisions, {}, &Provision::operations_per_second);
}

Provision balanced_provision(const std::vector<Provision>& provisions) {
  for (const Provision& p : provisions) {
    if (p.compute_operations_per_second <= p.memory_operations_per_second) return p;
  }
  fail<InvalidArgument>("memory is slower than arithmetic in all of ", provisions.size(),
                        " provisions");
}

}  // namespace ladder::bounds
