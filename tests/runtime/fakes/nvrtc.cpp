// SPDX-License-Identifier: Apache-2.0
// An NVRTC whose machine code is the text "<architecture>\n<source>".
#include <unistd.h>

#include <cstring>
#include <string>

#include "fakes.h"

FakeNvrtc fake_nvrtc;

namespace {

struct Program {
  std::string source, code, log;
};
Program& of(void* handle) { return *static_cast<Program*>(handle); }

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  *major = fake_nvrtc.major, *minor = fake_nvrtc.minor;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = fake_nvrtc.count;
  return 0;
}
int nvrtcGetSupportedArchs(int* all) {
  for (int i = 0; i < fake_nvrtc.count; ++i) all[i] = fake_nvrtc.architectures[i];
  return 0;
}
int nvrtcCreateProgram(void** handle, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *handle = new Program{source, {}, {}};
  return 0;
}
int nvrtcDestroyProgram(void** handle) {
  delete &of(*handle);
  return 0;
}
int nvrtcCompileProgram(void* handle, int count, const char* const* options) {
  ++fake_nvrtc.compiled;
  usleep(1000 * static_cast<unsigned>(fake_nvrtc.compile_ms));
  constexpr const char* kArchitecture = "--gpu-architecture=";
  for (int i = 0; i < count; ++i) {
    if (std::string(options[i]).starts_with(kArchitecture)) {
      of(handle).code = options[i] + std::strlen(kArchitecture);
    }
  }
  of(handle).code += "\n" + of(handle).source;
  of(handle).log = fake_nvrtc.result == 0 ? "Used 40 registers" : "the fake was told to fail";
  return fake_nvrtc.result;
}
int nvrtcGetCUBINSize(void* handle, std::size_t* size) {
  *size = of(handle).code.size();
  return 0;
}
int nvrtcGetCUBIN(void* handle, char* code) {
  std::memcpy(code, of(handle).code.data(), of(handle).code.size());
  return 0;
}
int nvrtcGetPTXSize(void* handle, std::size_t* size) {
  *size = of(handle).code.size() + 1;
  return 0;
}
int nvrtcGetPTX(void* handle, char* code) {
  std::memcpy(code, of(handle).code.c_str(), of(handle).code.size() + 1);
  return 0;
}
int nvrtcGetProgramLogSize(void* handle, std::size_t* size) {
  *size = of(handle).log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* handle, char* log) {
  std::memcpy(log, of(handle).log.c_str(), of(handle).log.size() + 1);
  return 0;
}
const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }

}  // extern "C"
