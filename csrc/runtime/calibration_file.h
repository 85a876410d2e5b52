// SPDX-License-Identifier: Apache-2.0
//
// Files of calibrations, as text:
//
//     {"format": 1,
//      "calibrations": {
//        "<device as found>, <architecture>, driver <version>": {
//          "about": {"<what>": "<text>"},
//          "numbers": {"<field>": <number>}}}}
//
// Anybody may have written one. What is read decides which kernels are tried first, never what they
// compute; a number that no such machine has refuses the whole of its entry.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "codegen/driver.h"
#include "device/calibration.h"

namespace ladder {

/// What calibrations are filed under. `row` is that of the machine without a calibration.
std::string machine_of(const Properties& properties, const Device& row);

struct StoredCalibration {
  Calibration numbers;
  std::map<std::string, std::string> about;
};

/// The entry of `machine`, whose row is `row`, in a file's text. Nothing where there is none; `why`
/// then says what is wrong with the file or the entry, and is empty where another machine's are all
/// that the file has.
std::optional<StoredCalibration> calibration_in(const std::string& text, const std::string& machine,
                                                const Device& row, std::string& why);

/// The file of the user's cache.
std::string calibration_path();

/// Adds an entry to the file at `path`, which appears whole; what it has of other machines stays.
/// Throws InvalidArgument for numbers that objection() refuses, and for a file that is there and is
/// none of calibrations; std::filesystem::filesystem_error where it cannot be written.
void write_calibration(const std::string& path, const std::string& machine, const Device& row,
                       const StoredCalibration& calibration);

/// A machine's row and what it is made of.
struct CalibratedRow {
  const Device* row;   ///< with the calibration, where there is one
  const Device* bare;  ///< without
  std::string machine;
  std::string path;  ///< of the calibration in use; empty: there is none
  std::string why;   ///< none is in use, where one was refused or switched off
  StoredCalibration calibration;
};

/// By LADDER_CALIBRATION: "off", a file, or, where it is empty or not set, the user's cache. A file
/// that was named and has nothing for the machine, and whatever was refused, is a notice.
CalibratedRow calibrated_row(const Properties& properties, const Device& row);

}  // namespace ladder
