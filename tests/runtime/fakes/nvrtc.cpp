// SPDX-License-Identifier: Apache-2.0
// An NVRTC whose machine code is the text "<architecture>\n<source>".
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <regex>
#include <string>

#include "fakes.h"

FakeCompiler fake_nvrtc;

namespace {

struct Program {
  std::string source, code, log;
};
Program& of(void* handle) { return *static_cast<Program*>(handle); }

/// A line for each compilation, of whatever process: LADDER_FAKE_COMPILED.
void note(const std::string& source) {
  const char* path = std::getenv("LADDER_FAKE_COMPILED");
  if (path == nullptr) return;
  const std::string line = std::to_string(std::hash<std::string>{}(source)) + "\n";
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || write(file, line.data(), line.size()) < 0) std::abort();
  close(file);
}

/// Whether a source is to spill: it has what the expression LADDER_FAKE_SPILLS describes.
bool spills(const std::string& source) {
  const char* wanted = std::getenv("LADDER_FAKE_SPILLS");
  return wanted != nullptr && std::regex_search(source, std::regex(wanted));
}

int milliseconds() {
  const char* given = std::getenv("LADDER_FAKE_COMPILE_MS");
  return given == nullptr ? fake_nvrtc.compile_ms : std::atoi(given);
}

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
  note(of(handle).source);
  usleep(1000 * static_cast<unsigned>(milliseconds()));
  constexpr const char* kArchitecture = "--gpu-architecture=";
  for (int i = 0; i < count; ++i) {
    if (std::string(options[i]).starts_with(kArchitecture)) {
      of(handle).code = options[i] + std::strlen(kArchitecture);
    }
  }
  of(handle).code += "\n" + of(handle).source;
  // As ptxas does, where registers change hands, as many as the bounds of the launch leave.
  int used = 40, threads = 0, blocks = 0;
  const std::string& source = of(handle).source;
  const auto at = source.find("__launch_bounds__(");
  if (source.find("more_registers<") != std::string::npos && at != std::string::npos &&
      std::sscanf(source.c_str() + at, "__launch_bounds__(%d, %d)", &threads, &blocks) == 2) {
    used = std::min(65536 / (threads * blocks) / 8 * 8, 240);
  }
  of(handle).log = fake_nvrtc.result == 0 ? "Used " + std::to_string(used) + " registers"
                                          : "the fake was told to fail";
  if (spills(of(handle).source)) of(handle).log += ", 8 bytes spill stores, 8 bytes spill loads";
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
