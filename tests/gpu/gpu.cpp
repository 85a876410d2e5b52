// SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ladder::testing {
namespace {

constexpr std::size_t kBeside = 256;
constexpr std::uint8_t kUntouched = 0xa5;

struct Api {
  int (*init)(unsigned);
  int (*count)(int*);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*allocate)(std::uint64_t*, std::size_t);
  int (*free)(std::uint64_t);
  int (*to_gpu)(std::uint64_t, const void*, std::size_t);
  int (*to_host)(void*, std::uint64_t, std::size_t);
  int (*synchronize)();
  bool there = false;
};

const Api& api() {
  static const Api found = [] {
    Api out{};
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return out;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    int devices = 0;
    void* context = nullptr;
    out.there = find(out.init, "cuInit") && find(out.count, "cuDeviceGetCount") &&
                find(out.retain, "cuDevicePrimaryCtxRetain") &&
                find(out.set_current, "cuCtxSetCurrent") && find(out.allocate, "cuMemAlloc_v2") &&
                find(out.free, "cuMemFree_v2") && find(out.to_gpu, "cuMemcpyHtoD_v2") &&
                find(out.to_host, "cuMemcpyDtoH_v2") && find(out.synchronize, "cuCtxSynchronize") &&
                out.init(0) == 0 && out.count(&devices) == 0 && devices > 0 &&
                out.retain(&context, 0) == 0 && out.set_current(context) == 0;
    return out;
  }();
  return found;
}

void check(int result, const char* what) {
  if (result != 0) fail<ToolchainError>(what, " returned ", result);
}

}  // namespace

bool has_gpu() { return api().there; }

GpuMemory::GpuMemory(const std::vector<std::uint8_t>& bytes) : address_(0), bytes_(bytes.size()) {
  check(api().allocate(&address_, bytes_ + kBeside), "cuMemAlloc");
  const std::vector<std::uint8_t> beside(kBeside, kUntouched);
  check(api().to_gpu(address_ + bytes_, beside.data(), kBeside), "cuMemcpyHtoD");
  set(bytes);
}

GpuMemory::~GpuMemory() {
  if (address_ != 0) api().free(address_);
}

GpuMemory::GpuMemory(GpuMemory&& other) noexcept
    : address_(std::exchange(other.address_, 0)), bytes_(other.bytes_) {}

void* GpuMemory::address() const { return reinterpret_cast<void*>(address_); }

void GpuMemory::set(const std::vector<std::uint8_t>& bytes) {
  LADDER_CHECK(bytes.size() == bytes_, bytes.size(), " bytes, not ", bytes_);
  if (bytes_ > 0) check(api().to_gpu(address_, bytes.data(), bytes_), "cuMemcpyHtoD");
}

std::vector<std::uint8_t> GpuMemory::get() const {
  check(api().synchronize(), "cuCtxSynchronize");
  std::vector<std::uint8_t> out(bytes_);
  if (bytes_ > 0) check(api().to_host(out.data(), address_, bytes_), "cuMemcpyDtoH");
  return out;
}

bool GpuMemory::is_written_beside() const {
  std::vector<std::uint8_t> beside(kBeside);
  check(api().to_host(beside.data(), address_ + bytes_, kBeside), "cuMemcpyDtoH");
  return std::ranges::any_of(beside, [](std::uint8_t byte) { return byte != kUntouched; });
}

}  // namespace ladder::testing
