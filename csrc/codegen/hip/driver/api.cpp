// SPDX-License-Identifier: Apache-2.0
#include "codegen/hip/driver/api.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/joined.h"
#include "codegen/hip/driver.h"
#include "codegen/hip/libraries.h"

namespace ladder::hip {
namespace {

/// What is there, or why it is not to be used.
struct Found {
  Driver api = {};
  std::string objection;  ///< empty: it is
};

Found find_driver() {
  Found found;
  Driver& api = found.api;
  void* const library = open_library("libamdhip64");
  if (library == nullptr) {
    found.objection = "libamdhip64.so of ROCm 6 or later was not found";
    return found;
  }
  const auto optional = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  const auto find = [&](auto& function, const char* name) {
    if (!optional(function, name) && found.objection.empty()) {
      found.objection =
          joined(loaded("libamdhip64"), " has no ", name, ": it must be of ROCm 6 or later");
    }
  };
  find(api.init, "hipInit");
  find(api.error_name, "hipGetErrorName");
  find(api.error_text, "hipGetErrorString");
  find(api.last_error, "hipGetLastError");
  find(api.device_count, "hipGetDeviceCount");
  find(api.current, "hipGetDevice");
  find(api.set_current, "hipSetDevice");
  find(api.device_attribute, "hipDeviceGetAttribute");
  // The function without the suffix writes the structure of ROCm 5.
  find(api.device_properties, "hipGetDevicePropertiesR0600");
  find(api.load, "hipModuleLoadData");
  find(api.unload, "hipModuleUnload");
  find(api.function, "hipModuleGetFunction");
  find(api.launch, "hipModuleLaunchKernel");
  find(api.exchange_mode, "hipThreadExchangeStreamCaptureMode");
  find(api.is_capturing, "hipStreamIsCapturing");
  find(api.stream_create, "hipStreamCreateWithFlags");
  find(api.stream_wait, "hipStreamSynchronize");
  find(api.stream_destroy, "hipStreamDestroy");
  find(api.event_create, "hipEventCreateWithFlags");
  find(api.event_record, "hipEventRecord");
  find(api.event_query, "hipEventQuery");
  find(api.event_destroy, "hipEventDestroy");
  find(api.allocate, "hipMalloc");
  find(api.free, "hipFree");
  find(api.set_words, "hipMemsetD32Async");
  optional(api.capture_info, "hipStreamGetCaptureInfo_v2");
  optional(api.stream_id, "hipStreamGetId");
  const bool keeps = optional(api.object_create, "hipUserObjectCreate") &&
                     optional(api.object_release, "hipUserObjectRelease") &&
                     optional(api.graph_retain, "hipGraphRetainUserObject");
  if (!keeps) api.graph_retain = nullptr;
  if (!found.objection.empty()) return found;
  int count = 0;
  Result result = api.init(0);
  if (result == kSuccess) result = api.device_count(&count);
  if (result != kSuccess) {
    found.objection = joined("hipInit: ", api.error_name(result), ": ", api.error_text(result));
    api.last_error();
  } else if (count == 0) {
    found.objection = "HIP finds no device";
  }
  return found;
}

const Found& found() {
  static const Found& once = *new Found(find_driver());
  return once;
}

}  // namespace

bool driver_present() { return driver_or_null() != nullptr; }

const Driver* driver_or_null() { return found().objection.empty() ? &found().api : nullptr; }

const Driver& driver() {
  const Found& all = found();
  if (!all.objection.empty()) [[unlikely]]
    fail<Unsupported>(all.objection);
  return all.api;
}

void forget_error() { driver().last_error(); }

void check(Result result, const char* what) {
  if (result == kSuccess) [[likely]]
    return;
  const Driver& api = driver();
  api.last_error();  // it is told here
  fail<ToolchainError>(what, ": ", api.error_name(result), ": ", api.error_text(result));
}

}  // namespace ladder::hip
