// SPDX-License-Identifier: Apache-2.0
#include "runtime/calibration_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "base/joined.h"
#include "runtime/checked_json.h"
#include "runtime/file_lock.h"
#include "runtime/folder.h"
#include "runtime/kernel_store.h"
#include "runtime/notices.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kName = "calibrations.json";
constexpr int kFormat = 1;
constexpr std::size_t kMostBytes = 1 << 20;
constexpr auto kPatience = 10s;

/// Why it is none; empty: `to` has the numbers.
std::string read_numbers(const json& entry, Calibration& to) {
  const json* numbers = object_at(entry, "numbers");
  if (numbers == nullptr) return "it has no numbers";
  for (const auto& [name, value] : numbers->items()) {
    const auto fields = calibration_fields();
    const auto field = std::ranges::find(fields, name, &CalibrationField::name);
    if (field == fields.end()) return joined("it has ", name, ", which is no field");
    if (!value.is_number()) return joined(name, " is ", value.type_name(), ", not a number");
    // 0 would be taken for what was not measured.
    const double number = value.get<double>();
    if (!std::isfinite(number) || number == 0) {
      return joined(name, " is ", number, " ", field->unit, ", not from ", field->low, " to ",
                    field->high);
    }
    field->of(to) = number;
  }
  return "";
}

json object_of(const StoredCalibration& calibration) {
  json numbers = json::object(), about = json::object();
  for (const CalibrationField& field : calibration_fields()) {
    const double value = field.get(calibration.numbers);
    if (value != 0) numbers[std::string(field.name)] = value;
  }
  for (const auto& [what, text] : calibration.about) about[what] = text;
  return {{"about", about}, {"numbers", numbers}};
}

/// The bytes of the file at `path`, through links; nothing, and why.
std::optional<std::string> bytes_of(const fs::path& path, std::error_code& why) {
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto folder = Folder::open(parent, Links::follow);
  if (!folder) {
    why = std::make_error_code(std::errc::no_such_file_or_directory);
    return std::nullopt;
  }
  return folder->read(path.filename(), kMostBytes, why);
}

const Device& kept(Device row) {
  static std::mutex mutex;
  static auto& all = *new std::deque<Device>;
  const std::lock_guard lock(mutex);
  return all.emplace_back(row);
}

}  // namespace

std::string machine_of(const Properties& properties, const Device& row) {
  std::string out = joined(row.found, ", ", properties.architecture);
  if (!properties.driver.empty()) out += ", driver " + properties.driver;
  return out;
}

std::string calibration_path() { return fs::path(user_cache_folder()) / kName; }

std::optional<StoredCalibration> calibration_in(const std::string& text, const std::string& machine,
                                                const Device& row, std::string& why) {
  why.clear();
  const json file = parsed_json(text, kFormat);
  const json* all = object_at(file, "calibrations");
  if (all == nullptr) {
    why = joined("it is no file of calibrations of format ", kFormat);
    return std::nullopt;
  }
  if (all->find(machine) == all->end()) return std::nullopt;
  const json* entry = object_at(*all, machine);
  if (entry == nullptr) {
    why = "its entry is no object";
    return std::nullopt;
  }
  StoredCalibration out;
  why = read_numbers(*entry, out.numbers);
  if (why.empty()) why = objection(out.numbers, row);
  if (!why.empty()) return std::nullopt;
  if (const json* about = object_at(*entry, "about")) {
    for (const auto& [what, said] : about->items()) {
      if (said.is_string()) out.about[what] = said.get<std::string>();
    }
  }
  return out;
}

void write_calibration(const std::string& path, const std::string& machine, const Device& row,
                       const StoredCalibration& calibration) {
  if (const auto why = objection(calibration.numbers, row); !why.empty()) {
    fail<InvalidArgument>("the calibration of ", machine, ": ", why);
  }
  const fs::path whole = fs::absolute(path);
  const auto folder = Folder::make(whole.parent_path(), 0755);
  const std::string name = whole.filename();
  if (!folder) {
    throw fs::filesystem_error("cannot make", whole.parent_path(),
                               std::error_code(errno, std::generic_category()));
  }
  const FileLock lock(*folder, name + ".lock", kPatience);
  if (lock.state() == FileLock::State::busy) {
    throw fs::filesystem_error("another process writes", whole,
                               std::make_error_code(std::errc::device_or_resource_busy));
  }
  std::error_code why;
  const auto text = folder->read(name, kMostBytes, why);
  json after{{"format", kFormat}, {"calibrations", json::object()}};
  if (why != std::errc::no_such_file_or_directory) {
    const json before = parsed_json(text, kFormat);
    const json* all = object_at(before, "calibrations");
    if (all == nullptr) {
      fail<InvalidArgument>(path, " is there and is no file of calibrations of format ", kFormat);
    }
    after["calibrations"] = *all;
  }
  after["calibrations"][machine] = object_of(calibration);
  const std::string staged = joined(name, ".", random_hex(8), ".staged");
  try {
    folder->write_new(staged, written(after) + "\n", 0644);
    folder->rename(staged, name);
    folder->sync();
  } catch (const fs::filesystem_error&) {
    folder->remove(staged);
    throw;
  }
}

CalibratedRow calibrated_row(const Properties& properties, const Device& row) {
  CalibratedRow out{&row, &row, machine_of(properties, row), "", "", {}};
  const char* said = std::getenv("LADDER_CALIBRATION");
  const std::string choice = said == nullptr ? "" : said;
  if (choice == "off") {
    out.why = "LADDER_CALIBRATION is off";
    return out;
  }
  const std::string path = choice.empty() ? calibration_path() : choice;
  std::error_code absent;
  const auto text = bytes_of(path, absent);
  if (!text) {
    const bool none = absent == std::errc::no_such_file_or_directory;
    if (!choice.empty() || !none) out.why = joined(path, ": ", absent.message());
  } else if (auto found = calibration_in(*text, out.machine, row, out.why)) {
    out.calibration = *std::move(found);
    out.path = path;
    Device changed = calibrated(row, out.calibration.numbers);
    constexpr std::string_view kMeasured = "measured by ladder calibrate";
    changed.sources.bandwidths = changed.sources.rates = changed.costs.source = kMeasured;
    out.row = &kept(changed);
  } else if (!out.why.empty() || !choice.empty()) {
    out.why =
        joined(path, ": ", out.why.empty() ? joined("it has nothing for ", out.machine) : out.why);
  }
  if (!out.why.empty()) {
    notice(joined("no calibration of ", out.machine, " is used: ", out.why));
  }
  return out;
}

}  // namespace ladder
