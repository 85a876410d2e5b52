// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_row.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <deque>
#include <mutex>

#include "base/error.h"
#include "codegen/target.h"

namespace ladder {
namespace {

/// "NVIDIA GeForce RTX 4090" as rows spell it, "nvidiageforcertx4090".
std::string squeezed(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return out;
}

/// The name that nvcc gives to a capability; architectures with instructions of their own end in a.
std::string architecture(int capability) {
  return "sm_" + std::to_string(capability) + (capability >= 90 ? "a" : "");
}

struct Made {
  std::string name, architecture;
  Device row;
};

const Device& made_row(const cuda::Properties& p, const Device& nearest) {
  static std::mutex mutex;
  static std::deque<Made> all;  // rows point at the names, so they must not move
  const std::lock_guard lock(mutex);
  for (const Made& made : all) {
    if (made.name == p.name && made.row.capability == p.capability) return made.row;
  }
  Made& made = all.emplace_back(Made{p.name, architecture(p.capability), nearest});
  made.row.name = made.name;
  made.row.architecture = made.architecture;
  made.row.capability = made.row.generation = p.capability;
  made.row.multiprocessors = p.multiprocessors;
  made.row.global.capacity_bytes = p.memory_bytes;
  if (p.bytes_per_second > 0) made.row.global.bytes_per_second = p.bytes_per_second;
  if (p.l2_bytes > 0) made.row.l2.capacity_bytes = p.l2_bytes;
  made.row.shared.capacity_bytes = p.shared_bytes;
  made.row.shared_per_block_bytes = p.shared_per_block_bytes;
  made.row.registers = p.registers;
  made.row.threads = p.threads;
  for (double Device::*rate : {&Device::f32_flops, &Device::f16_flops, &Device::bf16_flops,
                               &Device::f8_flops, &Device::i8_flops}) {
    made.row.*rate *= static_cast<double>(p.multiprocessors) / nearest.multiprocessors;
  }
  constexpr std::string_view kDriver = "asked of the driver";
  made.row.sources = {kDriver, kDriver, "per multiprocessor as the nearest row", kDriver};
  return made.row;
}

}  // namespace

const Device& device_row(const cuda::Properties& properties) {
  const std::string name = squeezed(properties.name);
  const Device *named = nullptr, *nearest = nullptr;
  for (const Device& row : devices()) {
    if (!no_target(row).empty() || row.capability > properties.capability) continue;
    if (row.capability == properties.capability && name.find(row.name) != std::string::npos) {
      // "h200" is in no other name; of two that fit, the longer says more.
      if (named == nullptr || row.name.size() > named->name.size()) named = &row;
    }
    if (nearest == nullptr || row.capability > nearest->capability) nearest = &row;
  }
  if (named != nullptr) return *named;
  if (nearest == nullptr) {
    const int oldest = tile_instruction(Scalar::f16)->architecture;
    fail<Unsupported>(properties.name, " has compute capability ", properties.capability / 10, ".",
                      properties.capability % 10, "; kernels need ", oldest / 10, ".", oldest % 10);
  }
  return made_row(properties, *nearest);
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
