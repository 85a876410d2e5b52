// SPDX-License-Identifier: Apache-2.0
#include "schedule/fitted.h"

#include "base/error.h"

namespace ladder::fitted {
namespace {

/// In which a scheduler issues one m16n8k16; 0: not published.
double matrix_cycles(const Device& device) {
  const MatrixInstruction* row = tile_instruction(Scalar::f16);
  LADDER_CHECK(row != nullptr, "no matrix instruction of float16");
  const double products = static_cast<double>(row->m) * row->n * row->k;
  const double lanes = device.f16_lanes * reached_share(device, *row);
  return lanes > 0 ? products * device.schedulers / lanes : 0;
}

/// Of the time of a byte from memory, that of a byte from L2; 0: not published.
double l2_time(const Device& device) {
  const double rate = device.fill_bytes_per_second();
  return rate > 0 ? device.global.bytes_per_second / rate : 0;
}

}  // namespace

Carried carried_to(const Device& device) {
  const Costs& costs = device.costs;
  const double bandwidth =
      device.global.bytes_per_second / device.multiprocessors / costs.at.bytes_per_second;
  const double cycles = matrix_cycles(device), l2 = l2_time(device);
  return {.clock = costs.clock * (device.clock() / costs.at.clock),
          // What is not published counts as it does where it was fitted.
          .matrix = cycles > 0 ? costs.decode.matrix + (cycles - costs.at.matrix_cycles)
                               : costs.decode.matrix,
          .from_l2 = l2 > 0 ? l2 / costs.at.l2_time : 1,
          .hidden = bandwidth,
          .wave_bytes = costs.decode.wave_bytes * bandwidth,
          .hiding_warps = costs.decode.hiding_warps * bandwidth};
}

}  // namespace ladder::fitted
