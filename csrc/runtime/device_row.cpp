// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_row.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <deque>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/target.h"

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

/// The name that nvcc gives to a capability; architectures with instructions of their own end in a.
std::string architecture(int capability) {
  return "sm_" + std::to_string(capability) + (capability >= 90 ? "a" : "");
}

/// `row` with the driver's numbers: all of them for a machine that it does not name, else those
/// that differ.
Device overlaid(const cuda::Properties& p, const Device& row, bool named, bool slice) {
  Device out = row;
  const auto take = [&](double& number, double told, double step) {
    if (told > 0 && !(named && same(told, number))) number = rounded(told, step);
  };
  take(out.global.capacity_bytes, p.memory_bytes, kCapacityStep);
  take(out.global.bytes_per_second, p.bytes_per_second, kRateStep);
  take(out.l2.capacity_bytes, p.l2_bytes, kL2Step);
  if (const double share = p.memory_bytes / row.global.capacity_bytes; slice && share < 1) {
    // A slice (MIG) has its part of the memory and of what leads there, whatever the driver tells
    // of the bus.
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
  out.capability = out.generation = p.capability;
  out.shared.capacity_bytes = p.shared_bytes;
  out.shared_per_block_bytes = p.shared_per_block_bytes;
  out.registers = p.registers;
  out.threads = p.threads;
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

const Device& kept(const cuda::Properties& p, Device row, bool as_in_table) {
  static std::mutex mutex;
  static std::deque<Found> all;  // rows point at the names, so they must not move
  const std::string text = description(p.name, row);
  const std::lock_guard lock(mutex);
  for (const Found& found : all) {
    if (found.description == text && numbers_of(found.row) == numbers_of(row)) return found.row;
  }
  Found& found = all.emplace_back(Found{p.name, architecture(p.capability), text, row});
  found.row.found = found.description;
  if (as_in_table) return found.row;
  found.row.name = found.name;
  found.row.architecture = found.architecture;
  constexpr std::string_view kDriver = "asked of the driver, or of the nearest row";
  found.row.sources = {kDriver, kDriver, "per multiprocessor and cycle as the nearest row",
                       kDriver};
  return found.row;
}

}  // namespace

const Device& device_row(const cuda::Properties& properties) {
  const auto words = words_of(properties.name);
  const Device *named = nullptr, *nearest = nullptr;
  for (const Device& row : devices()) {
    if (!no_target(row).empty() || row.capability > properties.capability) continue;
    if (row.capability == properties.capability && has_name(words, row.name)) named = &row;
    if (nearest == nullptr || row.capability > nearest->capability) nearest = &row;
  }
  if (nearest == nullptr) {
    const int oldest = tile_instruction(Scalar::f16)->architecture;
    fail<Unsupported>(properties.name, " has compute capability ", properties.capability / 10, ".",
                      properties.capability % 10, "; kernels need ", oldest / 10, ".", oldest % 10);
  }
  const Device& suggested = named != nullptr ? *named : *nearest;
  const bool slice = std::ranges::find(words, "mig") != words.end();
  const Device row = overlaid(properties, suggested, named != nullptr, slice);
  return kept(properties, row, named != nullptr && numbers_of(row) == numbers_of(suggested));
}

const Device& device_row(int ordinal) {
  LADDER_REQUIRE(0 <= ordinal && ordinal < kMaxDevices, "device ", ordinal, " of at most ",
                 kMaxDevices);
  static std::mutex mutex;
  static std::array<const Device*, kMaxDevices> rows{};
  const std::lock_guard lock(mutex);
  if (rows[ordinal] == nullptr) rows[ordinal] = &device_row(cuda::properties(ordinal));
  return *rows[ordinal];
}

}  // namespace ladder
