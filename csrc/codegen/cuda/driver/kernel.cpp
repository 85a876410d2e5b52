// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "codegen/cuda/driver.h"
#include "codegen/cuda/driver/api.h"

namespace ladder::cuda {
namespace {

class CudaKernel final : public Kernel {
 public:
  CudaKernel(const std::string& code, const std::string& name, int ordinal, unsigned shared_bytes);
  ~CudaKernel() override;
  [[nodiscard]] bool launch(const Launch& launch, void* stream, void** arguments) const override;
  int resident_clusters(const Launch& launch) const override;

 private:
  Context context_;
  void* module_ = nullptr;
  void* function_ = nullptr;
};

CudaKernel::CudaKernel(const std::string& code, const std::string& name, int ordinal,
                       unsigned shared_bytes)
    : context_(primary_context(ordinal)) {
  const Driver& api = driver();
  const Current current(context_);
  const Relaxed relaxed;
  check(api.load(&module_, code.data()), "cuModuleLoadData");
  try {
    check(api.function(&function_, module_, name.c_str()), "cuModuleGetFunction");
    // Also has a lazily loaded function loaded now and not in the middle of a capture.
    check(api.set_attribute(function_, kMaxDynamicShared, static_cast<int>(shared_bytes)),
          "cuFuncSetAttribute");
    if (shared_bytes > 0) {
      check(api.set_attribute(function_, kSharedCarveout, 100), "cuFuncSetAttribute");
    }
  } catch (...) {
    api.unload(module_);
    throw;
  }
}

CudaKernel::~CudaKernel() {
  try {
    const Current current(context_);
    const Relaxed relaxed;
    driver().unload(module_);
  } catch (const ToolchainError&) {
    // The context is gone, and its modules with it.
  }
}

bool CudaKernel::launch(const Launch& launch, void* stream, void** arguments) const {
  LaunchAttribute dependent{.id = kProgrammaticStreamSerialization};
  dependent.value.number = 1;
  const LaunchConfig config{.grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                            .block = {launch.threads, 1, 1},
                            .shared_bytes = launch.shared_bytes,
                            .stream = stream,
                            .attributes = &dependent,
                            .attribute_count = launch.dependent ? 1u : 0u};
  const Current current(context_);
  const Result result = driver().launch(&config, function_, arguments, nullptr);
  if (result == kOutOfResources || result == kInvalidCluster) [[unlikely]]
    return false;
  check(result, "cuLaunchKernelEx");
  return true;
}

int CudaKernel::resident_clusters(const Launch& launch) const {
  const LaunchConfig config{.grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                            .block = {launch.threads, 1, 1},
                            .shared_bytes = launch.shared_bytes};
  const Current current(context_);
  int count = 0;
  const Result result = driver().clusters(&count, function_, &config);
  if (result == kOutOfResources || result == kInvalidCluster) return 0;
  check(result, "cuOccupancyMaxActiveClusters");
  return count;
}

}  // namespace

std::unique_ptr<const Kernel> load(const std::string& code, const std::string& name, int ordinal,
                                   unsigned shared_bytes) {
  return std::make_unique<const CudaKernel>(code, name, ordinal, shared_bytes);
}

}  // namespace ladder::cuda
