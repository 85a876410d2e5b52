// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "codegen/hip/compilers.h"
#include "codegen/hip/libraries.h"

namespace ladder::hip {
namespace {

using Result = int;    // hiprtcResult
using Handle = void*;  // hiprtcProgram

/// The functions that are used, as hiprtc.h declares them.
struct Hiprtc {
  Result (*version)(int*, int*);
  Result (*create)(Handle*, const char*, const char*, int, const char* const*, const char* const*);
  Result (*destroy)(Handle*);
  Result (*compile)(Handle, int, const char* const*);
  Result (*code_size)(Handle, std::size_t*);
  Result (*code)(Handle, char*);
  Result (*log_size)(Handle, std::size_t*);
  Result (*log)(Handle, char*);
  const char* (*error)(Result);
};

/// Whether `library` has them all.
bool find_all(void* library, Hiprtc& api) {
  bool all = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    all = all && function != nullptr;
  };
  find(api.version, "hiprtcVersion");
  find(api.create, "hiprtcCreateProgram");
  find(api.destroy, "hiprtcDestroyProgram");
  find(api.compile, "hiprtcCompileProgram");
  find(api.code_size, "hiprtcGetCodeSize");
  find(api.code, "hiprtcGetCode");
  find(api.log_size, "hiprtcGetProgramLogSize");
  find(api.log, "hiprtcGetProgramLog");
  find(api.error, "hiprtcGetErrorString");
  return all;
}

/// Null: there is none. Before ROCm 7 the driver's library has it, too.
const Hiprtc* hiprtc() {
  static std::mutex mutex;
  static Hiprtc api;
  static bool found = false;
  const std::lock_guard lock(mutex);
  if (found) return &api;
  const std::filesystem::path driver = loaded("libamdhip64");
  for (const char* name : {"libhiprtc", "libamdhip64"}) {
    void* const library = open_library(name, driver.parent_path().string());
    if (library != nullptr && find_all(library, api)) {
      found = true;
      return &api;
    }
  }
  return nullptr;
}

std::pair<int, int> release() {
  std::pair<int, int> of{0, 0};
  if (const Hiprtc* api = hiprtc(); api != nullptr) api->version(&of.first, &of.second);
  return of;
}

/// The first release with an architecture, by AMD's lists of supported GPUs.
constexpr struct {
  std::string_view architecture;
  int major, minor;
} kSince[] = {
    {"gfx90a", 5, 0}, {"gfx942", 6, 0}, {"gfx950", 7, 0}, {"gfx1100", 5, 5}, {"gfx1201", 6, 4},
};

}  // namespace

std::string hiprtc_version() {
  if (hiprtc() == nullptr) return {};
  const auto [major, minor] = release();
  return "hiprtc " + std::to_string(major) + "." + std::to_string(minor);
}

bool hiprtc_knows(std::string_view architecture) {
  const auto row =
      std::ranges::find(kSince, architecture, [](auto& each) { return each.architecture; });
  return row != std::end(kSince) && release() >= std::pair(row->major, row->minor);
}

CodeObject compile_by_hiprtc(const std::string& source, const std::vector<std::string>& options) {
  const Hiprtc* api = hiprtc();
  if (api == nullptr) fail<Unsupported>("libhiprtc was not found");
  auto check = [&](Result result, const char* what) {
    if (result != 0) fail<ToolchainError>(what, ": ", api->error(result));
  };
  Handle program = nullptr;
  check(api->create(&program, source.c_str(), "kernel.hip", 0, nullptr, nullptr),
        "hiprtcCreateProgram");
  struct Destroy {
    const Hiprtc* api;
    Handle* program;
    ~Destroy() { api->destroy(program); }
  } destroy{api, &program};
  std::vector<const char*> words;
  for (const std::string& each : options) words.push_back(each.c_str());
  const Result result = api->compile(program, static_cast<int>(words.size()), words.data());
  CodeObject out;
  std::size_t size = 0;
  if (api->log_size(program, &size) == 0 && size > 1) {
    out.log.resize(size);
    api->log(program, out.log.data());
    out.log.resize(size - 1);
  }
  if (result != 0) {
    fail<ToolchainError>(hiprtc_version(), " with ", options.front(), ": ", api->error(result),
                         "\n", out.log);
  }
  check(api->code_size(program, &size), "hiprtcGetCodeSize");
  out.bytes.resize(size);
  check(api->code(program, out.bytes.data()), "hiprtcGetCode");
  return out;
}

}  // namespace ladder::hip
