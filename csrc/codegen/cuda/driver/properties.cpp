// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/joined.h"
#include "codegen/cuda/driver.h"
#include "codegen/cuda/driver/api.h"

namespace ladder::cuda {
namespace {

// Does nothing, for every device with clusters: the driver tells of clusters by a kernel only.
constexpr const char* kProbe =
    ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry probe() { ret; }\n";

bool fits(void* function, int cluster, unsigned shared_bytes) {
  LaunchAttribute dimension{.id = kClusterDimension};
  const auto blocks = static_cast<unsigned>(cluster);
  dimension.value.cluster[0] = blocks;
  dimension.value.cluster[1] = dimension.value.cluster[2] = 1;
  const LaunchConfig config{.grid = {blocks, 1, 1},
                            .block = {128, 1, 1},
                            .shared_bytes = shared_bytes,
                            .attributes = &dimension,
                            .attribute_count = 1};
  int count = 0;
  return driver().clusters(&count, function, &config) == kSuccess && count > 0;
}

/// Properties::max_cluster. 0 where the driver has no compiler of PTX beside it.
int largest_cluster(int ordinal, int shared_per_block_bytes) {
  const Driver& api = driver();
  const Current current(primary_context(ordinal));
  const Relaxed relaxed;
  void *module = nullptr, *function = nullptr;
  if (api.load(&module, kProbe) != kSuccess) return 0;
  int largest = 0;
  if (api.function(&function, module, "probe") == kSuccess &&
      api.set_attribute(function, kMaxDynamicShared, shared_per_block_bytes) == kSuccess) {
    largest = kMostCluster;
    while (largest > 1 && !fits(function, largest, shared_per_block_bytes)) --largest;
  }
  api.unload(module);
  return largest;
}

}  // namespace

std::string architecture_of(int capability) {
  return "sm_" + std::to_string(capability) + (capability >= 90 ? "a" : "");
}

Properties properties(int ordinal) {
  const Driver& api = driver();
  const int device = device_of(ordinal);
  const auto attribute = [&](DeviceAttribute which) {
    int value = 0;
    check(api.device_attribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  Properties out{};
  char name[256] = {};
  check(api.device_name(name, sizeof name, device), "cuDeviceGetName");
  out.name = name;
  int version = 0;
  check(api.version(&version), "cuDriverGetVersion");
  out.driver = joined(version / 1000, ".", version % 1000 / 10);
  std::size_t bytes = 0;
  check(api.device_memory(&bytes, device), "cuDeviceTotalMem");
  out.memory_bytes = static_cast<double>(bytes);
  out.capability = 10 * attribute(kMajor) + attribute(kMinor);
  out.architecture = architecture_of(out.capability);
  out.multiprocessors = attribute(kMultiprocessors);
  out.clock = 1e3 * attribute(kClockKHz);
  out.l2_bytes = attribute(kL2Bytes);
  // Two transfers a clock.
  out.bytes_per_second = 2e3 * attribute(kMemoryClockKHz) * attribute(kMemoryBusBits) / 8;
  out.shared_bytes = attribute(kSharedPerMultiprocessor);
  out.shared_per_block_bytes = attribute(kSharedPerBlockOptin);
  out.registers = attribute(kRegistersPerMultiprocessor);
  out.threads = attribute(kThreadsPerMultiprocessor);
  out.max_cluster =
      attribute(kClusterLaunch) != 0 ? largest_cluster(ordinal, out.shared_per_block_bytes) : 1;
  return out;
}

}  // namespace ladder::cuda
