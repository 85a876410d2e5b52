// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/driver/api.h"

#include <dlfcn.h>

#include <type_traits>

#include "base/error.h"
#include "codegen/cuda/driver.h"

namespace ladder::cuda {
namespace {

const Driver* find_driver() {
  static Driver api;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return nullptr;
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    all = all && function != nullptr;
  };
  find(api.init, "cuInit");
  find(api.error_name, "cuGetErrorName");
  find(api.error_text, "cuGetErrorString");
  find(api.version, "cuDriverGetVersion");
  find(api.device, "cuDeviceGet");
  find(api.device_name, "cuDeviceGetName");
  find(api.device_attribute, "cuDeviceGetAttribute");
  find(api.device_memory, "cuDeviceTotalMem_v2");
  find(api.retain, "cuDevicePrimaryCtxRetain");
  find(api.current, "cuCtxGetCurrent");
  find(api.push, "cuCtxPushCurrent_v2");
  find(api.pop, "cuCtxPopCurrent_v2");
  find(api.load, "cuModuleLoadData");
  find(api.unload, "cuModuleUnload");
  find(api.function, "cuModuleGetFunction");
  find(api.set_attribute, "cuFuncSetAttribute");
  find(api.launch, "cuLaunchKernelEx");
  find(api.clusters, "cuOccupancyMaxActiveClusters");
  find(api.exchange_mode, "cuThreadExchangeStreamCaptureMode");
  find(api.capture_info, "cuStreamGetCaptureInfo_v2");
  find(api.object_create, "cuUserObjectCreate");
  find(api.object_release, "cuUserObjectRelease");
  find(api.graph_retain, "cuGraphRetainUserObject");
  find(api.stream_id, "cuStreamGetId");
  find(api.stream_create, "cuStreamCreate");
  find(api.stream_wait, "cuStreamSynchronize");
  find(api.stream_destroy, "cuStreamDestroy_v2");
  find(api.event_create, "cuEventCreate");
  find(api.event_record, "cuEventRecord");
  find(api.event_query, "cuEventQuery");
  find(api.event_destroy, "cuEventDestroy_v2");
  find(api.allocate, "cuMemAlloc_v2");
  find(api.free, "cuMemFree_v2");
  find(api.set_words, "cuMemsetD32Async");
  return all && api.init(0) == kSuccess ? &api : nullptr;
}

}  // namespace

bool driver_present() { return driver_or_null() != nullptr; }

const Driver* driver_or_null() {
  static const Driver* const api = find_driver();
  return api;
}

const Driver& driver() {
  const Driver* api = driver_or_null();
  if (api == nullptr) fail<Unsupported>("libcuda.so.1 of CUDA 12 or later was not found");
  return *api;
}

void check(Result result, const char* what) {
  if (result == kSuccess) [[likely]]
    return;
  const char *name = "?", *text = "?";
  driver().error_name(result, &name);
  driver().error_text(result, &text);
  fail<ToolchainError>(what, ": ", name, ": ", text);
}

int device_of(int ordinal) {
  int device = 0;
  check(driver().device(&device, ordinal), "cuDeviceGet");
  return device;
}

Context primary_context(int ordinal) {
  Context context = nullptr;  // never released: it is torch's as well
  check(driver().retain(&context, device_of(ordinal)), "cuDevicePrimaryCtxRetain");
  return context;
}

Context any_context(int ordinal) {
  Context now = nullptr;
  check(driver().current(&now), "cuCtxGetCurrent");
  return now != nullptr ? now : primary_context(ordinal);
}

}  // namespace ladder::cuda
