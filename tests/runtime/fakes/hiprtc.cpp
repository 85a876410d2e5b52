// SPDX-License-Identifier: Apache-2.0
// A hiprtc whose code objects have the metadata of a kernel, then the text "<options>\n<source>".
#include <cstdlib>
#include <cstring>
#include <regex>
#include <string>

#include "fakes/code_object.h"
#include "fakes/fakes.h"

FakeCompiler fake_hiprtc{.major = 6, .minor = 3};

namespace {

struct Program {
  std::string source, code, log;
};
Program& of(void* handle) { return *static_cast<Program*>(handle); }

}  // namespace

extern "C" {

int hiprtcVersion(int* major, int* minor) {
  *major = fake_hiprtc.major, *minor = fake_hiprtc.minor;
  return 0;
}
int hiprtcCreateProgram(void** handle, const char* source, const char*, int, const char* const*,
                        const char* const*) {
  *handle = new Program{source, {}, {}};
  return 0;
}
int hiprtcDestroyProgram(void** handle) {
  delete &of(*handle);
  return 0;
}
int hiprtcCompileProgram(void* handle, int count, const char* const* options) {
  ++fake_hiprtc.compiled;
  Program& program = of(handle);
  std::string text;
  for (int i = 0; i < count; ++i) text += std::string(i > 0 ? " " : "") + options[i];
  fake::FakeKernel kernel;
  const char* spills = std::getenv("LADDER_FAKE_SPILLS");
  if (spills != nullptr && std::regex_search(program.source, std::regex(spills))) {
    kernel.vgpr_spills = 2, kernel.scratch_bytes = 8;
  }
  program.code = fake::code_object(fake::metadata_of({kernel}), text + "\n" + program.source);
  program.log = fake_hiprtc.result == 0 ? "" : "the fake was told to fail";
  return fake_hiprtc.result;
}
int hiprtcGetCodeSize(void* handle, std::size_t* size) {
  *size = of(handle).code.size();
  return 0;
}
int hiprtcGetCode(void* handle, char* code) {
  std::memcpy(code, of(handle).code.data(), of(handle).code.size());
  return 0;
}
int hiprtcGetProgramLogSize(void* handle, std::size_t* size) {
  *size = of(handle).log.size() + 1;
  return 0;
}
int hiprtcGetProgramLog(void* handle, char* log) {
  std::memcpy(log, of(handle).log.c_str(), of(handle).log.size() + 1);
  return 0;
}
const char* hiprtcGetErrorString(int) { return "HIPRTC_ERROR_COMPILATION"; }

}  // extern "C"
