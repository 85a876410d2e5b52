// SPDX-License-Identifier: Apache-2.0
#include "schedule/fitted.h"

#include "base/error.h"

namespace ladder::fitted {
namespace {

/// In which a quarter of a multiprocessor issues one m16n8k16; 0: not published.
double matrix_cycles(const Device& device) {
  const MatrixInstruction* row = tile_instruction(Scalar::f16);
  LADDER_CHECK(row != nullptr, "no matrix instruction of float16");
  const double products = static_cast<double>(row->m) * row->n * row->k;
  const double lanes = device.f16_lanes * reached_share(device, *row);
  return lanes > 0 ? products * device.schedulers / lanes : 0;
}

double per_multiprocessor(const Device& device) {
  return device.global.bytes_per_second / device.multiprocessors;
}

/// Of the time of a byte from memory, that of a byte from L2; 0: not published.
double l2_time(const Device& device) {
  const double rate = device.fill_bytes_per_second();
  return rate > 0 ? device.global.bytes_per_second / rate : 0;
}

}  // namespace

Carried carried_to(const Device& device) {
  const Device& known = ladder::device(kFittedOn);
  const double bandwidth = per_multiprocessor(device) / per_multiprocessor(known);
  const double cycles = matrix_cycles(device), l2 = l2_time(device);
  return {.clock = kClock * (device.clock() / known.clock()),
          // What is not published counts as it does on the H200.
          .matrix = cycles > 0 ? kMatrix + (cycles - matrix_cycles(known)) : kMatrix,
          .from_l2 = l2 > 0 ? l2 / l2_time(known) : 1,
          .wave_bytes = kWaveBytes * bandwidth,
          .hiding_warps = kHidingWarps * bandwidth};
}

}  // namespace ladder::fitted
