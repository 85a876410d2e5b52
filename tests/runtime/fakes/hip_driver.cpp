// SPDX-License-Identifier: Apache-2.0
// The functions of HIP that ladder calls. With FAKE_HIP_BARE those are left out that releases of
// ROCm may lack; with FAKE_HIP_OLD the one whose lack tells ROCm 5.
//
// Beyond the rules of driver.h: a launch and a load go to the current device of the thread; the
// driver does not copy the code of a module; every error stays with the thread until it is asked
// for.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "fakes/driver_state.h"
#include "fakes/fakes.h"
#include "fakes/hip.h"

using namespace fake;

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidConfiguration = 9, kNoDevice = 100,
              kInvalidDevice = 101, kNotReady = 600, kOutOfResources = 701,
              kUnsupportedInCapture = 900, kInvalidated = 901;

thread_local int current_device = 0, last_error = kSuccess;
int refusal = kOutOfResources;
std::map<const void*, std::pair<const char*, std::string>> codes;  // of modules, as they were

int ends(int result) {
  if (result != kSuccess) last_error = result;
  return result;
}

}  // namespace

namespace fake {

int pending_error() { return last_error; }
int device_of_this_thread() { return current_device; }
void set_device_of_this_thread(int ordinal) { current_device = ordinal; }
void refuse_with(int error) { refusal = error; }
bool keeps_code_of_modules() {
  const Lock lock(mutex);
  return std::ranges::all_of(codes, [](const auto& each) {
    const auto& [at, text] = each.second;
    return std::memcmp(at, text.data(), text.size()) == 0;
  });
}

}  // namespace fake

extern "C" {

int hipInit(unsigned) { return ends(fake_driver.init_result); }
int hipGetDeviceCount(int* count) {
  *count = fake_driver.devices;
  return ends(*count == 0 ? kNoDevice : kSuccess);
}
const char* hipGetErrorName(int error) {
  return error == kUnsupportedInCapture ? "hipErrorStreamCaptureUnsupported"
         : error == kInvalidated        ? "hipErrorStreamCaptureInvalidated"
         : error == kNoDevice           ? "hipErrorNoDevice"
                                        : "hipErrorFake";
}
const char* hipGetErrorString(int) { return "the fake was told to fail"; }
int hipGetLastError() { return std::exchange(last_error, kSuccess); }

int hipGetDevice(int* device) {
  *device = current_device;
  return kSuccess;
}
int hipSetDevice(int device) {
  if (device < 0 || device >= fake_driver.devices) return ends(kInvalidDevice);
  current_device = device;
  return ends(fake_driver.device_result);
}

int hipDeviceGetAttribute(int* value, int which, int device) {
  const Machine& m = machine(device);
  const std::map<int, int> attributes = {{5, m.clock_khz}, {19, 4 << 20},           {56, 1024},
                                         {57, 2048},       {63, m.multiprocessors}, {74, 64 << 10},
                                         {87, 64}};
  const auto found = attributes.find(which);
  if (found == attributes.end()) return ends(kInvalidValue);
  *value = found->second;
  return ends(fake_driver.device_result);
}

#ifndef FAKE_HIP_OLD
int hipGetDevicePropertiesR0600(void* properties, int device) {
  const Machine& m = machine(device);
  char* const to = static_cast<char*>(properties);
  std::memset(to, 0, 1472);
  const auto bytes = static_cast<std::size_t>(m.memory_bytes);
  std::memcpy(to, m.name.data(), std::min<std::size_t>(m.name.size(), 255));
  std::memcpy(to + 288, &bytes, sizeof bytes);
  // Of the package, where the attribute has the partition's.
  const int package = 304;
  std::memcpy(to + 388, &package, sizeof package);
  std::memcpy(to + 1160, m.architecture.data(), std::min<std::size_t>(m.architecture.size(), 255));
  return ends(fake_driver.device_result);
}
#endif

int hipThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}

int hipModuleLoadData(void** module, const void* code) {
  ++fake_driver.loaded;
  if (fake_driver.load_result != kSuccess) return ends(fake_driver.load_result);
  {
    const Lock lock(mutex);
    if (breaks_captures()) return ends(kUnsupportedInCapture);
    ++state->loads;
    Module& made = state->modules.emplace_back();
    made.device = current_device;
    const auto* text = static_cast<const char*>(code);
    codes[&made] = {text, std::string(text, std::min<std::size_t>(4, std::strlen(text)))};
    *module = &made;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(state->load_time));
  return kSuccess;
}

int hipModuleUnload(void* module) {
  const Lock lock(mutex);
  if (breaks_captures()) return ends(kUnsupportedInCapture);
  auto* mine = static_cast<Module*>(module);
  if (mine->unloaded) state->mistakes += "unloads " + mine->name + " twice\n";
  if (mine->device != current_device) state->mistakes += "unloads on another device\n";
  mine->unloaded = true;
  codes.erase(mine);
  return kSuccess;
}

int hipModuleGetFunction(void** function, void* module, const char* name) {
  const Lock lock(mutex);
  static_cast<Module*>(module)->name = name;
  *function = module;
  return ends(fake_driver.function_result);
}

int hipModuleLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                          unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                          void* stream, void** arguments, void** extra) {
  const Lock lock(mutex);
  const auto* module = static_cast<Module*>(function);
  if (module->unloaded) state->mistakes += "launches the unloaded " + module->name + "\n";
  if (module->device != current_device) state->mistakes += "launches on another device\n";
  if (extra != nullptr || threads_y != 1 || threads_z != 1 || x == 0 || y == 0 || z == 0 ||
      shared_bytes > 64 << 10 || threads > 1024) {
    return ends(kInvalidValue);
  }
  if (state->refuse != 0) {
    if (state->refuse > 0) --state->refuse;
    return ends(refusal);
  }
  const auto found = state->streams.find(stream);
  const bool captured = found != state->streams.end() && found->second.graph != nullptr;
  if (captured && found->second.broken) return ends(kInvalidated);
  Launched launched{module->name, stream,  captured,    current_device,
                    {x, y, z},    threads, shared_bytes};
  for (std::size_t i = 0; arguments != nullptr && i < state->argument_bytes.size(); ++i) {
    launched.arguments.emplace_back(static_cast<const char*>(arguments[i]),
                                    state->argument_bytes[i]);
  }
  state->launches.push_back(std::move(launched));
  return kSuccess;
}

int hipStreamIsCapturing(void* handle, int* status) {
  const Lock lock(mutex);
  const auto found = state->streams.find(handle);
  const bool records = found != state->streams.end() && found->second.graph != nullptr;
  *status = !records ? 0 : found->second.broken ? 2 : 1;
  return kSuccess;
}

int hipStreamCreateWithFlags(void** stream, unsigned flags) {
  if (flags != 1) return ends(kInvalidValue);  // it must block for nobody
  *stream = new_stream();
  return kSuccess;
}

int hipStreamSynchronize(void* handle) {
  const Lock lock(mutex);
  if (breaks_captures() || breaks_captures_as_legacy(handle)) return ends(kUnsupportedInCapture);
  for (auto [words, count] : state->streams.at(handle).zeroing) std::fill_n(words, count, 0u);
  return kSuccess;
}

int hipStreamDestroy(void* stream) {
  destroy_stream(stream);
  return kSuccess;
}

int hipEventCreateWithFlags(void** event, unsigned flags) {
  if (flags != 2) return ends(kInvalidValue);  // without a clock
  const Lock lock(mutex);
  *event = new char;
  state->events[*event] = nullptr;
  return kSuccess;
}

int hipEventRecord(void* event, void* stream) {
  const Lock lock(mutex);
  state->events.at(event) = stream;
  return kSuccess;
}

int hipEventQuery(void* event) {
  const Lock lock(mutex);
  if (breaks_captures()) return ends(kUnsupportedInCapture);
  const auto found = state->streams.find(state->events.at(event));
  return ends(found != state->streams.end() && found->second.busy ? kNotReady : kSuccess);
}

int hipEventDestroy(void* event) {
  const Lock lock(mutex);
  state->events.erase(event);
  delete static_cast<char*>(event);
  return kSuccess;
}

int hipMalloc(void** memory, std::size_t bytes) {
  const Lock lock(mutex);
  if (breaks_captures()) return ends(kUnsupportedInCapture);
  *memory = std::malloc(bytes);
  std::memset(*memory, 0xcd, bytes);
  return ends(fake_driver.allocate_result);
}

int hipFree(void*) { return kSuccess; }

int hipMemsetD32Async(void* memory, int word, std::size_t count, void* stream) {
  const Lock lock(mutex);
  if (breaks_captures_as_legacy(stream)) return ends(kUnsupportedInCapture);
  if (word != 0 || !state->streams.contains(stream)) return ends(kInvalidValue);
  state->streams.at(stream).zeroing.emplace_back(static_cast<std::uint32_t*>(memory), count);
  return kSuccess;
}

#ifndef FAKE_HIP_BARE
int hipStreamGetCaptureInfo_v2(void* handle, int* status, unsigned long long* id, void** graph,
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

int hipUserObjectCreate(void** object, void* data, void (*destroy)(void*), unsigned references,
                        unsigned flags) {
  if (flags != 1) return ends(kInvalidValue);
  *object = new UserObject{data, destroy, static_cast<int>(references)};
  return kSuccess;
}

int hipUserObjectRelease(void* object, unsigned) {
  release(static_cast<UserObject*>(object));
  return kSuccess;
}

int hipGraphRetainUserObject(void* graph, void* object, unsigned, unsigned flags) {
  if (fake_driver.retain_result != kSuccess || flags != 1) {
    return ends(flags != 1 ? kInvalidValue : fake_driver.retain_result);
  }
  const Lock lock(mutex);
  static_cast<Graph*>(graph)->objects.push_back(static_cast<UserObject*>(object));
  return kSuccess;
}

int hipStreamGetId(void* handle, unsigned long long* id) {
  const Lock lock(mutex);
  const auto found = state->streams.find(handle);
  *id = found == state->streams.end() ? 0 : found->second.id;  // the legacy stream
  return kSuccess;
}
#endif

}  // extern "C"
