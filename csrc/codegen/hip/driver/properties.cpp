// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "codegen/hip/driver.h"
#include "codegen/hip/driver/api.h"

namespace ladder::hip {

Properties properties(int ordinal) {
  const Driver& api = driver();
  const auto attribute = [&](DeviceAttribute which) {
    int value = 0;
    check(api.device_attribute(&value, which, ordinal), "hipDeviceGetAttribute");
    return value;
  };
  const auto told = std::make_unique<DeviceProperties>();
  check(api.device_properties(told.get(), ordinal), "hipGetDeviceProperties");
  Properties out{};
  out.architecture = told->architecture;
  // Names come from a table of the system, which may be older than the device.
  out.name = told->name[0] != '\0' ? told->name : "AMD " + out.architecture;
  out.memory_bytes = static_cast<double>(told->memory_bytes);
  // Of a partition those that it has, where the structure may count the package.
  out.multiprocessors = attribute(kMultiprocessors);
  out.clock = 1e3 * attribute(kClockKHz);
  out.shared_per_block_bytes = attribute(kSharedPerBlock);
  out.threads = attribute(kThreadsPerMultiprocessor);
  out.max_cluster = 1;
  return out;
}

}  // namespace ladder::hip
