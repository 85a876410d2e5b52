// SPDX-License-Identifier: Apache-2.0
// The functions of the driver that ladder calls.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "fakes/driver_state.h"
#include "fakes/fakes.h"

using namespace fake;

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotFound = 500, kNotReady = 600,
              kOutOfResources = 701, kUnsupportedInCapture = 900, kInvalidated = 901;
thread_local void* current_context = nullptr;
void* const kContext = reinterpret_cast<void*>(0xc0);

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }

// NVRTC asks for tables of the driver's, and does without.
int cuGetExportTable(const void**, const void*) { return kNotFound; }

int cuGetErrorName(int error, const char** name) {
  *name = error == kUnsupportedInCapture ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
          : error == kInvalidated        ? "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
                                         : "CUDA_ERROR_FAKE";
  return kSuccess;
}

int cuGetErrorString(int, const char** text) {
  *text = "the fake was told to fail";
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = 13020;
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return fake_driver.device_result;
}

int cuDeviceGetName(char* name, int size, int device) {
  std::strncpy(name, machine(device).name.c_str(), static_cast<std::size_t>(size) - 1);
  return kSuccess;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  *bytes = static_cast<std::size_t>(machine(device).memory_bytes);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int which, int device) {
  const Machine& m = machine(device);
  const std::map<int, int> attributes = {{13, m.clock_khz},
                                         {16, m.multiprocessors},
                                         {36, m.memory_khz},
                                         {37, m.bus_bits},
                                         {38, m.l2_bytes},
                                         {39, m.threads},
                                         {75, m.capability / 10},
                                         {76, m.capability % 10},
                                         {81, m.shared_bytes},
                                         {82, 65536},
                                         {97, m.shared_per_block_bytes},
                                         {120, m.capability >= 90}};
  const auto found = attributes.find(which);
  if (found == attributes.end()) return kInvalidValue;
  *value = found->second;
  return kSuccess;
}

// The context of a device is its ordinal behind kContext.
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = static_cast<char*>(kContext) + device;
  return kSuccess;
}
int cuCtxGetCurrent(void** context) {
  *context = current_context;
  return kSuccess;
}
int cuCtxPushCurrent_v2(void* context) {
  current_context = context;
  return kSuccess;
}
int cuCtxPopCurrent_v2(void** context) {
  *context = std::exchange(current_context, nullptr);
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}

int cuModuleLoadData(void** module, const void*) {
  ++fake_driver.loaded;
  if (fake_driver.load_result != kSuccess) return fake_driver.load_result;
  {
    const Lock lock(mutex);
    if (breaks_captures()) return kUnsupportedInCapture;
    ++state->loads;
    *module = &state->modules.emplace_back();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(state->load_time));
  return kSuccess;
}

int cuModuleUnload(void* module) {
  const Lock lock(mutex);
  if (breaks_captures()) return kUnsupportedInCapture;
  auto* mine = static_cast<Module*>(module);
  if (mine->unloaded) state->mistakes += "unloads " + mine->name + " twice\n";
  mine->unloaded = true;
  return kSuccess;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const Lock lock(mutex);
  static_cast<Module*>(module)->name = name;
  *function = module;
  return kSuccess;
}

int cuFuncSetAttribute(void*, int, int) { return kSuccess; }

struct Attribute {
  int id;
  char pad[4];
  unsigned value[16];
};
struct Config {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned attribute_count;
};

int cuOccupancyMaxActiveClusters(int* count, void*, const Config* config) {
  const int device =
      static_cast<int>(static_cast<char*>(current_context) - static_cast<char*>(kContext));
  const Lock lock(mutex);
  const Machine& m = state->machines.at(device);
  if (config->attribute_count == 0) {  // the cubin says how large, and nobody reads it here
    *count = m.fits_compiled_clusters ? 1 : 0;
  } else {
    const auto cluster = static_cast<int>(config->attributes[0].value[0]);
    *count = cluster <= m.largest_cluster ? m.multiprocessors / cluster : 0;
  }
  return kSuccess;
}

int cuLaunchKernelEx(const Config* config, void* function, void**, void**) {
  const Lock lock(mutex);
  const auto* module = static_cast<Module*>(function);
  if (module->unloaded) state->mistakes += "launches the unloaded " + module->name + "\n";
  if (state->refuse != 0) {
    if (state->refuse > 0) --state->refuse;
    return kOutOfResources;
  }
  const auto found = state->streams.find(config->stream);
  const bool captured = found != state->streams.end() && found->second.graph != nullptr;
  if (captured && found->second.broken) return kInvalidated;
  state->launches.push_back({module->name, config->stream, captured});
  return kSuccess;
}

int cuStreamGetCaptureInfo_v2(void* handle, int* status, std::uint64_t* id, void** graph,
                              const void***, std::size_t*) {
  const Lock lock(mutex);
  *status = 0;
  const auto found = state->streams.find(handle);
  if (found == state->streams.end() || found->second.graph == nullptr) return kSuccess;
  *status = found->second.broken ? 2 : 1;
  *id = found->second.capture;
  *graph = found->second.graph;
  return kSuccess;
}

int cuUserObjectCreate(void** object, void* data, void (*destroy)(void*), unsigned references,
                       unsigned) {
  *object = new UserObject{data, destroy, static_cast<int>(references)};
  return kSuccess;
}

int cuUserObjectRelease(void* object, unsigned) {
  release(static_cast<UserObject*>(object));
  return kSuccess;
}

int cuGraphRetainUserObject(void* graph, void* object, unsigned, unsigned) {
  const Lock lock(mutex);
  static_cast<Graph*>(graph)->objects.push_back(static_cast<UserObject*>(object));
  return kSuccess;
}

int cuStreamGetId(void* handle, unsigned long long* id) {
  const Lock lock(mutex);
  const auto found = state->streams.find(handle);
  *id = found == state->streams.end() ? 0 : found->second.id;  // the legacy stream
  return kSuccess;
}

int cuStreamCreate(void** stream, unsigned flags) {
  if (flags != 1) return kInvalidValue;  // it must block for nobody
  *stream = new_stream();
  return kSuccess;
}

int cuStreamSynchronize(void* handle) {
  const Lock lock(mutex);
  if (breaks_captures() || breaks_captures_as_legacy(handle)) return kUnsupportedInCapture;
  for (auto [words, count] : state->streams.at(handle).zeroing) std::fill_n(words, count, 0u);
  return kSuccess;
}

int cuStreamDestroy_v2(void* stream) {
  destroy_stream(stream);
  return kSuccess;
}

int cuEventCreate(void** event, unsigned) {
  const Lock lock(mutex);
  *event = new char;
  state->events[*event] = nullptr;
  return kSuccess;
}

int cuEventRecord(void* event, void* stream) {
  const Lock lock(mutex);
  state->events.at(event) = stream;
  return kSuccess;
}

int cuEventQuery(void* event) {
  const Lock lock(mutex);
  if (breaks_captures()) return kUnsupportedInCapture;
  const auto found = state->streams.find(state->events.at(event));
  return found != state->streams.end() && found->second.busy ? kNotReady : kSuccess;
}

int cuEventDestroy_v2(void* event) {
  const Lock lock(mutex);
  state->events.erase(event);
  delete static_cast<char*>(event);
  return kSuccess;
}

int cuMemAlloc_v2(std::uintptr_t* memory, std::size_t bytes) {
  const Lock lock(mutex);
  if (breaks_captures()) return kUnsupportedInCapture;
  void* made = std::malloc(bytes);
  std::memset(made, 0xcd, bytes);
  *memory = reinterpret_cast<std::uintptr_t>(made);
  return kSuccess;
}

int cuMemFree_v2(std::uintptr_t) { return kSuccess; }

int cuMemsetD32Async(std::uintptr_t memory, unsigned word, std::size_t count, void* stream) {
  const Lock lock(mutex);
  if (breaks_captures_as_legacy(stream)) return kUnsupportedInCapture;
  if (word != 0 || !state->streams.contains(stream)) return kInvalidValue;
  state->streams.at(stream).zeroing.emplace_back(reinterpret_cast<std::uint32_t*>(memory), count);
  return kSuccess;
}

}  // extern "C"
