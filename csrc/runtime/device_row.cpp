// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_row.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/target.h"
#include "runtime/gpus.h"

namespace ladder {
namespace {

// Data sheets and drivers count differently: memory in GB or in what the driver leaves of GiB (an
// H200: 141 and 150 GB), rates as measured or as the memory's clock has them (4530 and 4917 GB/s),
// clocks in steps. Numbers this near are one machine's: it keeps the row's, for which the cost
// model was fitted. The variants of a name lie further apart in at least one of them.
constexpr double kSame = 0.1;

// To which the driver's numbers are rounded: what its versions keep for themselves varies.
constexpr double kCapacityStep = 1e9, kRateStep = 10e9, kClockStep = 10e6, kL2Step = 1 << 20;

double rounded(double value, double step) { return std::round(value / step) * step; }

bool same(double told, double row) { return std::abs(told - row) <= kSame * row; }

/// "NVIDIA A100-SXM4-80GB": nvidia, a100, sxm4, 80gb.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

/// Whether whole words, written as one, are the name of a row: "RTX 4090" is rtx4090, "GH200" is
/// not h200.
bool has_name(const std::vector<std::string>& words, std::string_view row) {
  for (std::size_t first = 0; first < words.size(); ++first) {
    std::string joined;
    for (std::size_t i = first; i < words.size() && joined.size() < row.size(); ++i) {
      joined += words[i];
    }
    if (joined == row) return true;
  }
  return false;
}

/// The row that a machine is likest to.
struct Suggested {
  const Device* row = nullptr;
  bool named = false;  ///< by the driver, too
};

Suggested nvidia_row(const Properties& p, const std::vector<std::string>& words) {
  const Device *named = nullptr, *nearest = nullptr;
  for (const Device& row : devices()) {
    if (row.family != Family::nvidia || !no_target(row).empty()) continue;
    if (row.capability > p.capability) continue;
    if (row.capability == p.capability && has_name(words, row.name)) named = &row;
    if (nearest == nullptr || row.capability > nearest->capability) nearest = &row;
  }
  if (nearest == nullptr) {
    const int oldest = first_tile_instruction(Family::nvidia).architecture;
    fail<Unsupported>(p.name, " has compute capability ", p.capability / 10, ".", p.capability % 10,
                      "; kernels need ", oldest / 10, ".", oldest % 10);
  }
  return {named != nullptr ? named : nearest, named != nullptr};
}

/// "gfx942" of "gfx942:sramecc+:xnack-".
std::string_view without_features(std::string_view architecture) {
  return architecture.substr(0, architecture.find(':'));
}

Suggested amd_row(const Properties& p, const std::vector<std::string>& words) {
  const std::string_view architecture = without_features(p.architecture);
  Suggested found;
  std::string known;
  for (const Device& row : devices()) {
    if (!is_amd(row.family)) continue;
    if (known.find(row.architecture) == std::string::npos) {
      known += joined(known.empty() ? "" : ", ", row.architecture);
    }
    if (row.architecture != architecture || found.named) continue;
    const bool named = has_name(words, row.name);
    if (found.row == nullptr || named) found = {&row, named};
  }
  if (found.row == nullptr) {
    fail<Unsupported>(p.name, " is ", architecture, "; ladder knows ", known);
  }
  return found;
}

/// In the units of the row. The driver counts RDNA's by workgroup processors, of two compute units
/// each, unless it was told not to.
Properties in_units_of(const Device& row, Properties p) {
  if (row.family != Family::rdna) return p;
  if (p.multiprocessors <= row.multiprocessors / 2) p.multiprocessors *= 2;
  p.threads = row.threads;
  return p;
}

/// The part of a whole machine that `p` is; 1: all of it.
double share_of(const Properties& p, const Device& row, bool slice) {
  double share = 1;
  if (slice) share = p.memory_bytes / row.global.capacity_bytes;
  // A partition of an AMD package (CPX, DPX) has some of its dies, and may see all of its memory.
  if (is_amd(row.family)) share = double(p.multiprocessors) / row.multiprocessors;
  return std::min(share, 1.0);
}

/// `row` with the driver's numbers: all of them for a machine that it does not name, else those
/// that differ.
Device overlaid(const Properties& p, const Device& row, bool named, bool slice) {
  Device out = row;
  const auto take = [&](double& number, double told, double step) {
    if (told > 0 && !(named && same(told, number))) number = rounded(told, step);
  };
  take(out.global.capacity_bytes, p.memory_bytes, kCapacityStep);
  take(out.global.bytes_per_second, p.bytes_per_second, kRateStep);
  take(out.l2.capacity_bytes, p.l2_bytes, kL2Step);
  if (const double share = share_of(p, row, slice); share < 1) {
    // A slice (MIG) or partition has its part of the memory and of what leads there, whatever the
    // driver tells of the bus.
    double &rate = out.global.bytes_per_second, &l2 = out.l2.capacity_bytes;
    rate = std::min(rate, rounded(share * row.global.bytes_per_second, kRateStep));
    l2 = std::min(l2, std::max(rounded(share * row.l2.capacity_bytes, kL2Step), kL2Step));
  }
  double clock = row.clock();
  take(clock, p.clock, kClockStep);
  out.multiprocessors = p.multiprocessors;
  const double faster = clock / row.clock() * p.multiprocessors / row.multiprocessors;
  for (double Device::*rate : {&Device::f32_flops, &Device::f16_flops, &Device::bf16_flops,
                               &Device::f8_flops, &Device::i8_flops}) {
    out.*rate *= faster;
  }
  if (row.l2.bytes_per_second > 0) out.l2.bytes_per_second *= faster;
  if (p.capability > 0) out.capability = out.generation = p.capability;
  const auto told = [](auto& number, int value) {
    if (value > 0) number = value;
  };
  told(out.shared.capacity_bytes, p.shared_bytes);
  told(out.shared_per_block_bytes, p.shared_per_block_bytes);
  told(out.registers, p.registers);
  told(out.threads, p.threads);
  out.max_cluster =
      std::min(row.max_cluster, p.max_cluster > 0 ? p.max_cluster : p.multiprocessors);
  return out;
}

/// Numbers by which a schedule may differ.
auto numbers_of(const Device& d) {
  return std::tuple(d.capability, d.multiprocessors, d.global.capacity_bytes,
                    d.global.bytes_per_second, d.l2.capacity_bytes, d.f32_flops,
                    d.shared.capacity_bytes, d.shared_per_block_bytes, d.registers, d.threads,
                    d.max_cluster);
}

/// "NVIDIA H200: 132 multiprocessors at 1980 MHz, 141 GB at 4530 GB/s, 60 MiB of L2".
std::string description(const std::string& name, const Device& row) {
  return joined(name, ": ", row.multiprocessors, " multiprocessors at ",
                std::llround(rounded(row.clock(), kClockStep) / 1e6), " MHz, ",
                std::llround(row.global.capacity_bytes / 1e9), " GB at ",
                std::llround(row.global.bytes_per_second / 1e9), " GB/s, ",
                std::llround(row.l2.capacity_bytes / kL2Step), " MiB of L2");
}

struct Found {
  std::string name, architecture, description;
  Device row;
};

const Device& kept(const Properties& p, Device row, bool as_in_table) {
  static std::mutex mutex;
  static std::deque<Found> all;  // rows point at the names, so they must not move
  const std::string text = description(p.name, row);
  const std::lock_guard lock(mutex);
  for (const Found& found : all) {
    if (found.description == text && found.architecture == p.architecture &&
        numbers_of(found.row) == numbers_of(row)) {
      return found.row;
    }
  }
  Found& found = all.emplace_back(Found{p.name, p.architecture, text, row});
  found.row.found = found.description;
  found.row.architecture = found.architecture;
  if (as_in_table) return found.row;
  found.row.name = found.name;
  constexpr std::string_view kDriver = "asked of the driver, or of the nearest row";
  found.row.sources = {kDriver, kDriver, "per multiprocessor and cycle as the nearest row",
                       kDriver};
  return found.row;
}

}  // namespace

bool allows_unproven() {
  static const bool allows = [] {
    const char* value = std::getenv("LADDER_UNPROVEN");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return allows;
}

const Device& device_row(const Properties& properties) {
  const auto words = words_of(properties.name);
  const Suggested suggested =
      properties.capability > 0 ? nvidia_row(properties, words) : amd_row(properties, words);
  const bool slice = std::ranges::find(words, "mig") != words.end();
  Device row =
      overlaid(in_units_of(*suggested.row, properties), *suggested.row, suggested.named, slice);
  row.unproven = allows_unproven();
  return kept(properties, row, suggested.named && numbers_of(row) == numbers_of(*suggested.row));
}

const Device& device_row(int ordinal) { return *calibrated_row(ordinal).row; }

const CalibratedRow& calibrated_row(int ordinal) {
  LADDER_REQUIRE(0 <= ordinal && ordinal < kMaxDevices, "device ", ordinal, " of at most ",
                 kMaxDevices);
  static std::mutex mutex;
  // Never destroyed: threads that compile may ask to the end.
  static auto& rows = *new std::array<std::optional<CalibratedRow>, kMaxDevices>;
  const std::lock_guard lock(mutex);
  if (!rows[ordinal]) {
    const Properties properties = gpus().driver.properties(ordinal);
    rows[ordinal] = calibrated_row(properties, device_row(properties));
  }
  return *rows[ordinal];
}

}  // namespace ladder
