// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/driver.h"

#include <dlfcn.h>

#include <cstdint>

#include "base/error.h"

namespace ladder::cuda {
namespace {

// As cuda.h declares them, so that building needs no CUDA toolkit.
using Result = int;
using Context = void*;
using Stream = void*;

enum DeviceAttribute {
  kMultiprocessors = 16,
  kMemoryClockKHz = 36,
  kMemoryBusBits = 37,
  kL2Bytes = 38,
  kThreadsPerMultiprocessor = 39,
  kMajor = 75,
  kMinor = 76,
  kSharedPerMultiprocessor = 81,
  kRegistersPerMultiprocessor = 82,
  kSharedPerBlockOptin = 97,
};
enum FunctionAttribute { kMaxDynamicShared = 8, kSharedCarveout = 9 };
constexpr int kProgrammaticStreamSerialization = 6;

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int number;
  } value;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Driver {
  Result (*init)(unsigned);
  Result (*error_name)(Result, const char**);
  Result (*error_text)(Result, const char**);
  Result (*device)(int*, int);
  Result (*device_name)(char*, int, int);
  Result (*device_attribute)(int*, int, int);
  Result (*device_memory)(std::size_t*, int);
  Result (*retain)(Context*, int);
  Result (*current)(Context*);
  Result (*push)(Context);
  Result (*pop)(Context*);
  Result (*load)(void**, const void*);
  Result (*function)(void**, void*, const char*);
  Result (*set_attribute)(void*, int, int);
  Result (*launch)(const LaunchConfig*, void*, void**, void**);
  Result (*is_capturing)(Stream, int*);
  Result (*allocate)(std::uintptr_t*, std::size_t);
  Result (*set_words)(std::uintptr_t, unsigned, std::size_t);
};

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
  find(api.device, "cuDeviceGet");
  find(api.device_name, "cuDeviceGetName");
  find(api.device_attribute, "cuDeviceGetAttribute");
  find(api.device_memory, "cuDeviceTotalMem_v2");
  find(api.retain, "cuDevicePrimaryCtxRetain");
  find(api.current, "cuCtxGetCurrent");
  find(api.push, "cuCtxPushCurrent_v2");
  find(api.pop, "cuCtxPopCurrent_v2");
  find(api.load, "cuModuleLoadData");
  find(api.function, "cuModuleGetFunction");
  find(api.set_attribute, "cuFuncSetAttribute");
  find(api.launch, "cuLaunchKernelEx");
  find(api.is_capturing, "cuStreamIsCapturing");
  find(api.allocate, "cuMemAlloc_v2");
  find(api.set_words, "cuMemsetD32_v2");
  return all && api.init(0) == 0 ? &api : nullptr;
}

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
  if (result == 0) [[likely]]
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
  Context context = nullptr;  // never released: kernels live as long as the process
  check(driver().retain(&context, device_of(ordinal)), "cuDevicePrimaryCtxRetain");
  return context;
}

/// Makes `context` current for a scope. Torch has usually done so already; a thread that has
/// called nothing of CUDA yet has none.
class Current {
 public:
  explicit Current(Context context) {
    Context now = nullptr;
    check(driver().current(&now), "cuCtxGetCurrent");
    if (now == context) return;
    check(driver().push(context), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~Current() {
    Context ignored;
    if (pushed_) driver().pop(&ignored);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace

bool driver_present() { return driver_or_null() != nullptr; }

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
  std::size_t bytes = 0;
  check(api.device_memory(&bytes, device), "cuDeviceTotalMem");
  out.memory_bytes = static_cast<double>(bytes);
  out.capability = 10 * attribute(kMajor) + attribute(kMinor);
  out.multiprocessors = attribute(kMultiprocessors);
  out.l2_bytes = attribute(kL2Bytes);
  // Two transfers a clock.
  out.bytes_per_second = 2e3 * attribute(kMemoryClockKHz) * attribute(kMemoryBusBits) / 8;
  out.shared_bytes = attribute(kSharedPerMultiprocessor);
  out.shared_per_block_bytes = attribute(kSharedPerBlockOptin);
  out.registers = attribute(kRegistersPerMultiprocessor);
  out.threads = attribute(kThreadsPerMultiprocessor);
  return out;
}

Kernel::Kernel(const std::string& cubin, const std::string& name, int ordinal,
               unsigned shared_bytes)
    : context_(primary_context(ordinal)) {
  const Driver& api = driver();
  const Current current(context_);
  void* module = nullptr;
  check(api.load(&module, cubin.data()), "cuModuleLoadData");
  check(api.function(&function_, module, name.c_str()), "cuModuleGetFunction");
  // Also has a lazily loaded function loaded now and not in the middle of a capture.
  check(api.set_attribute(function_, kMaxDynamicShared, static_cast<int>(shared_bytes)),
        "cuFuncSetAttribute");
  if (shared_bytes > 0) {
    check(api.set_attribute(function_, kSharedCarveout, 100), "cuFuncSetAttribute");
  }
}

void Kernel::launch(const Launch& launch, void* stream, void** arguments) const {
  LaunchAttribute dependent{.id = kProgrammaticStreamSerialization};
  dependent.value.number = 1;
  const LaunchConfig config{.grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                            .block = {launch.threads, 1, 1},
                            .shared_bytes = launch.shared_bytes,
                            .stream = stream,
                            .attributes = &dependent,
                            .attribute_count = launch.dependent ? 1u : 0u};
  const Current current(context_);
  check(driver().launch(&config, function_, arguments, nullptr), "cuLaunchKernelEx");
}

bool capturing(void* stream, int ordinal) {
  Context context = nullptr;
  check(driver().current(&context), "cuCtxGetCurrent");
  // A thread of autograd may have none yet. Otherwise any will do: a stream knows its own.
  const Current current(context != nullptr ? context : primary_context(ordinal));
  int status = 0;
  check(driver().is_capturing(stream, &status), "cuStreamIsCapturing");
  return status != 0;
}

void* zeroed_memory(std::size_t bytes, int ordinal) {
  const Current current(primary_context(ordinal));
  std::uintptr_t memory = 0;
  check(driver().allocate(&memory, bytes), "cuMemAlloc");
  check(driver().set_words(memory, 0, bytes / 4), "cuMemsetD32");
  return reinterpret_cast<void*>(memory);
}

}  // namespace ladder::cuda
