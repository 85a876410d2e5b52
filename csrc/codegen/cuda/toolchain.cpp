// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/toolchain.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <regex>

#include "base/error.h"
#include "base/joined.h"

namespace ladder::cuda {
namespace {

using Result = int;    // nvrtcResult
using Handle = void*;  // nvrtcProgram

/// The functions of NVRTC that are used, as nvrtc.h declares them.
struct Nvrtc {
  Result (*version)(int*, int*);
  Result (*create)(Handle*, const char*, const char*, int, const char* const*, const char* const*);
  Result (*destroy)(Handle*);
  Result (*compile)(Handle, int, const char* const*);
  Result (*cubin_size)(Handle, std::size_t*);
  Result (*cubin)(Handle, char*);
  Result (*log_size)(Handle, std::size_t*);
  Result (*log)(Handle, char*);
  const char* (*error)(Result);
};

std::mutex mutex;
std::vector<std::string>& directories() {
  static std::vector<std::string> all;
  return all;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

void* open_nvrtc() {
  constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
  for (const auto& directory : directories()) {
    // NVRTC asks for its builtins by name only; loaded already, they are found.
    std::error_code ignored;
    for (const auto& file : std::filesystem::directory_iterator(directory, ignored)) {
      if (file.path().filename().string().starts_with("libnvrtc-builtins.so")) {
        dlopen(file.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
      }
    }
    for (const char* name : kNames) {
      if (void* library = dlopen((directory + "/" + name).c_str(), RTLD_NOW)) return library;
    }
  }
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW)) return library;
  }
  for (const char* name : kNames) {
    const auto path = std::string("/usr/local/cuda/lib64/") + name;
    if (void* library = dlopen(path.c_str(), RTLD_NOW)) return library;
  }
  return nullptr;
}

const Nvrtc* nvrtc() {
  const std::lock_guard lock(mutex);
  static Nvrtc functions;
  static bool loaded = false;
  if (loaded) return &functions;
  void* library = open_nvrtc();
  if (library == nullptr) return nullptr;
  loaded = find(library, "nvrtcVersion", functions.version) &&
           find(library, "nvrtcCreateProgram", functions.create) &&
           find(library, "nvrtcDestroyProgram", functions.destroy) &&
           find(library, "nvrtcCompileProgram", functions.compile) &&
           find(library, "nvrtcGetCUBINSize", functions.cubin_size) &&
           find(library, "nvrtcGetCUBIN", functions.cubin) &&
           find(library, "nvrtcGetProgramLogSize", functions.log_size) &&
           find(library, "nvrtcGetProgramLog", functions.log) &&
           find(library, "nvrtcGetErrorString", functions.error);
  return loaded ? &functions : nullptr;
}

int number_before(const std::string& log, const char* pattern) {
  std::smatch match;
  return std::regex_search(log, match, std::regex(pattern)) ? std::stoi(match[1]) : 0;
}

}  // namespace

void add_nvrtc_directory(std::string directory) {
  const std::lock_guard lock(mutex);
  directories().push_back(std::move(directory));
}

std::vector<std::string> nvrtc_directories() {
  const std::lock_guard lock(mutex);
  return directories();
}

std::string objection(const Binary& binary) {
  if (binary.spill_bytes > 0) return joined("spills ", binary.spill_bytes, " bytes of registers");
  return binary.warning;
}

std::string compiler_version() {
  const Nvrtc* api = nvrtc();
  if (api == nullptr) return {};
  int major = 0, minor = 0;
  api->version(&major, &minor);
  return "nvrtc " + std::to_string(major) + "." + std::to_string(minor);
}

Binary compile(std::string_view source, std::string_view architecture) {
  const Nvrtc* api = nvrtc();
  if (api == nullptr) {
    fail<Unsupported>("libnvrtc was not found; `pip install nvidia-cuda-nvrtc` provides it");
  }
  auto check = [&](Result result, const char* what) {
    if (result != 0) fail<ToolchainError>(what, ": ", api->error(result));
  };
  Handle program = nullptr;
  check(api->create(&program, std::string(source).c_str(), "kernel.cu", 0, nullptr, nullptr),
        "nvrtcCreateProgram");
  struct Destroy {
    const Nvrtc* api;
    Handle* program;
    ~Destroy() { api->destroy(program); }
  } destroy{api, &program};
  const auto target = "--gpu-architecture=" + std::string(architecture);
  const char* options[] = {target.c_str(), "--std=c++17", "--ptxas-options=-v"};
  const Result result = api->compile(program, 3, options);
  Binary out{};
  std::size_t size = 0;
  if (api->log_size(program, &size) == 0 && size > 1) {
    out.log.resize(size);
    api->log(program, out.log.data());
    out.log.resize(size - 1);
  }
  if (result != 0) fail<ToolchainError>(api->error(result), "\n", out.log);
  check(api->cubin_size(program, &size), "nvrtcGetCUBINSize");
  out.cubin.resize(size);
  check(api->cubin(program, out.cubin.data()), "nvrtcGetCUBIN");
  out.registers = number_before(out.log, "Used (\\d+) registers");
  out.stack_bytes = number_before(out.log, "(\\d+) bytes stack frame");
  out.spill_bytes = number_before(out.log, "(\\d+) bytes spill stores") +
                    number_before(out.log, "(\\d+) bytes spill loads");
  // All of these warnings say so, whatever the reason that their numbers stand for.
  std::smatch warning;
  if (std::regex_search(out.log, warning,
                        std::regex("\\(C\\d+\\) Potential Performance Loss[^\n]*"))) {
    out.warning = warning[0];
  }
  return out;
}

}  // namespace ladder::cuda
