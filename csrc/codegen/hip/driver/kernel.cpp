// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "codegen/hip/driver.h"
#include "codegen/hip/driver/api.h"

namespace ladder::hip {
namespace {

int attribute(DeviceAttribute which, int ordinal) {
  int value = 0;
  check(driver().device_attribute(&value, which, ordinal), "hipDeviceGetAttribute");
  return value;
}

class HipKernel final : public Kernel {
 public:
  HipKernel(const std::string& code, const std::string& name, int ordinal)
      : ordinal_(ordinal),
        code_(code),
        most_shared_bytes_(static_cast<unsigned>(attribute(kSharedPerBlock, ordinal))),
        most_threads_(static_cast<unsigned>(attribute(kThreadsPerBlock, ordinal))) {
    const Driver& api = driver();
    const OnDevice here(ordinal);
    const Relaxed relaxed;
    check(api.load(&module_, code_.data()), "hipModuleLoadData");
    if (const Result result = api.function(&function_, module_, name.c_str()); result != kSuccess) {
      api.unload(module_);
      check(result, "hipModuleGetFunction");
    }
  }

  ~HipKernel() override {
    try {
      const OnDevice here(ordinal_);
      const Relaxed relaxed;
      if (driver().unload(module_) != kSuccess) forget_error();
    } catch (const ToolchainError&) {
      // The driver is gone, and its modules with it.
    }
  }

  [[nodiscard]] bool launch(const Launch& launch, void* stream, void** arguments) const override {
    LADDER_CHECK(!launch.dependent, "HIP has no dependent launches");
    if (!fits(launch)) [[unlikely]]
      return false;
    const OnDevice here(ordinal_);
    const auto& [x, y, z] = launch.grid;
    const Result result = driver().launch(function_, x, y, z, launch.threads, 1, 1,
                                          launch.shared_bytes, stream, arguments, nullptr);
    if (result == kOutOfResources || result == kInvalidConfiguration) [[unlikely]] {
      forget_error();
      return false;
    }
    check(result, "hipModuleLaunchKernel");
    return true;
  }

  int resident_clusters(const Launch&) const override { return 0; }

 private:
  /// The driver says "invalid value" to these, as it does to mistakes of ours. It counts the
  /// threads of a grid along x in 32 bits.
  bool fits(const Launch& launch) const {
    return launch.shared_bytes <= most_shared_bytes_ && launch.threads <= most_threads_ &&
           std::uint64_t{launch.grid[0]} * launch.threads <=
               std::numeric_limits<std::uint32_t>::max();
  }

  int ordinal_;
  std::string code_;  // the driver keeps no copy
  unsigned most_shared_bytes_, most_threads_;
  void* module_ = nullptr;
  void* function_ = nullptr;
};

}  // namespace

// Blocks may ask for all shared memory of theirs at every launch.
std::unique_ptr<const Kernel> load(const std::string& code, const std::string& name, int ordinal,
                                   unsigned) {
  return std::make_unique<const HipKernel>(code, name, ordinal);
}

}  // namespace ladder::hip
