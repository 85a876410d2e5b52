// SPDX-License-Identifier: Apache-2.0
// A driver with one H200 that runs nothing.
#include <cstdint>
#include <cstring>

#include "fakes.h"

FakeCuda fake_cuda;

namespace {
int anything;  // has the address of every handle
}

extern "C" {

int cuInit(unsigned) { return 0; }
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "the fake was told to fail";
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return fake_cuda.device_result;
}
int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "NVIDIA H200", static_cast<std::size_t>(size));
  return 0;
}
int cuDeviceGetAttribute(int* value, int which, int) {
  switch (which) {
    case 16: *value = 132; break;       // multiprocessors
    case 13: *value = 1980000; break;   // kHz
    case 36: *value = 3201000; break;   // kHz of the memory
    case 37: *value = 6144; break;      // bits of its bus
    case 38: *value = 60 << 20; break;  // bytes of L2
    case 39: *value = 2048; break;      // threads of a multiprocessor
    case 75: *value = 9; break;         // compute capability
    case 76: *value = 0; break;
    case 81: *value = 228 << 10; break;  // shared bytes of a multiprocessor
    case 82: *value = 65536; break;      // registers
    case 97: *value = 227 << 10; break;  // shared bytes of a block
    default: *value = 1;
  }
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{141} << 30;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  *context = &anything;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = &anything;
  return 0;
}
int cuCtxPushCurrent_v2(void*) { return 0; }
int cuCtxPopCurrent_v2(void**) { return 0; }
int cuModuleLoadData(void** module, const void*) {
  ++fake_cuda.loaded;
  *module = &anything;
  return fake_cuda.load_result;
}
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void*, const char*) {
  *function = &anything;
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernelEx(const void*, void*, void**, void**) { return 0; }
int cuOccupancyMaxActiveClusters(int* count, void*, const void*) {
  *count = 16;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }
int cuStreamIsCapturing(void*, int* status) {
  *status = 0;
  return 0;
}
int cuStreamGetCaptureInfo_v2(void*, int* status, std::uint64_t* id, void** graph, const void***,
                              std::size_t*) {
  *status = 0;
  if (id != nullptr) *id = 0;
  if (graph != nullptr) *graph = nullptr;
  return 0;
}
int cuUserObjectCreate(void** object, void*, void (*)(void*), unsigned, unsigned) {
  *object = &anything;
  return 0;
}
int cuUserObjectRelease(void*, unsigned) { return 0; }
int cuGraphRetainUserObject(void*, void*, unsigned, unsigned) { return 0; }
int cuStreamGetId(void*, unsigned long long* id) {
  *id = 1;
  return 0;
}
int cuStreamCreate(void** stream, unsigned) {
  *stream = &anything;
  return 0;
}
int cuStreamSynchronize(void*) { return 0; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuEventCreate(void** event, unsigned) {
  *event = &anything;
  return 0;
}
int cuEventRecord(void*, void*) { return 0; }
int cuEventQuery(void*) { return 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuMemAlloc_v2(std::uintptr_t* memory, std::size_t) {
  *memory = reinterpret_cast<std::uintptr_t>(&anything);
  return 0;
}
int cuMemFree_v2(std::uintptr_t) { return 0; }
int cuMemsetD32_v2(std::uintptr_t, unsigned, std::size_t) { return 0; }
int cuMemsetD32Async(std::uintptr_t, unsigned, std::size_t, void*) { return 0; }

}  // extern "C"
