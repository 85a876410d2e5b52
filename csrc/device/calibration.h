// SPDX-License-Identifier: Apache-2.0
//
// What `ladder calibrate` measures of a machine, and a row with it in the place of the row's
// numbers. What a row with measured numbers chooses may be slow where they are wrong, never a wrong
// result.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "device/device.h"

namespace ladder {

/// Operands of matrix instructions, in the order in which a calibration has their rates.
constexpr std::array<std::string_view, 4> kMatrixOperands = {"float16", "bfloat16", "int8",
                                                             "float8_e4m3"};

/// Of one instruction; 0: not measured.
struct MatrixRate {
  double flops = 0;  ///< operations per second of the device, kept up for a tenth of a second
  double lanes = 0;  ///< multiply-adds of one multiprocessor in a cycle
};

/// All 0 where nothing was measured: then the row's number, or the fitted one, stays.
struct Calibration {
  double read_bytes_per_second = 0;  ///< of memory, from buffers larger than twice L2
  double l2_bytes_per_second = 0;    ///< of a buffer of a quarter of L2
  double clock = 0;                  ///< cycles per second under integer operations
  double integer_lanes = 0;          ///< logical operations of a multiprocessor in a cycle
  std::array<MatrixRate, 4> warps;   ///< by instructions of single warps, in kMatrixOperands' order
  std::array<MatrixRate, 4> warpgroups;
  double latency_seconds = 0;    ///< of a load from memory that waits for the one before
  double launch_seconds = 0;     ///< of a small layer's kernel behind others in a graph
  double dependent_seconds = 0;  ///< of the same as a dependent launch
  double ticket_seconds = 0;     ///< of an atomic operation between two fences
  double cluster_seconds = 0;    ///< of a barrier of a cluster of two CTAs
};

/// A number of a calibration as files and tables spell it.
struct CalibrationField {
  std::string_view name;
  std::string_view unit;
  double& (*of)(Calibration&);
  double low, high;  ///< beyond which no machine is
  double get(const Calibration& c) const { return of(const_cast<Calibration&>(c)); }
};
std::span<const CalibrationField> calibration_fields();

/// Why `calibration` is of no such machine, with both values; empty: it may be.
std::string objection(const Calibration& calibration, const Device& row);

/// What `row` has in the place of a field, in its unit; 0: nothing, or nothing known.
double number_of_row(const Device& row, const CalibrationField& field);

/// What `ladder calibrate` measured on a machine like the one of kFittedCosts. 0: nobody did, and
/// costs that would be carried by the number stay as they were fitted.
extern const Calibration kFittedOn;

/// `row` with what was measured: read rates and matrix rates as they are, clock and costs that were
/// fitted on another machine in the proportion of what was measured on that one.
Device calibrated(const Device& row, const Calibration& calibration,
                  const Calibration& fitted_on = kFittedOn);

}  // namespace ladder
