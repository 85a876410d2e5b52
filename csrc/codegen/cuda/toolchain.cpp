// SPDX-License-Identifier: Apache-2.0
#include "codegen/cuda/toolchain.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
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
  Result (*ptx_size)(Handle, std::size_t*);
  Result (*ptx)(Handle, char*);
  const char* (*error)(Result);
  Result (*count_architectures)(int*);  // these two since 11.2
  Result (*architectures)(int*);
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
           find(library, "nvrtcGetPTXSize", functions.ptx_size) &&
           find(library, "nvrtcGetPTX", functions.ptx) &&
           find(library, "nvrtcGetErrorString", functions.error);
  find(library, "nvrtcGetNumSupportedArchs", functions.count_architectures);
  find(library, "nvrtcGetSupportedArchs", functions.architectures);
  return loaded ? &functions : nullptr;
}

constexpr const char* kNoCompiler =
    "libnvrtc was not found; `pip install nvidia-cuda-nvrtc` provides it";

/// The number of an architecture, 90 of "sm_90a"; 0 where it has none.
int number_in(std::string_view architecture) {
  const auto first = std::min(architecture.find_first_of("0123456789"), architecture.size());
  int number = 0;
  std::from_chars(architecture.data() + first, architecture.data() + architecture.size(), number);
  return number;
}

/// Boards with the CPU on the chip: their machine code and that of others are not compatible (CUDA
/// C++ Programming Guide, binary compatibility).
bool is_embedded(int architecture) {
  constexpr int kAll[] = {53, 62, 72, 87, 101, 110};
  return std::find(std::begin(kAll), std::end(kAll), architecture) != std::end(kAll);
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

std::string compiler_version() {
  const Nvrtc* api = nvrtc();
  if (api == nullptr) return {};
  int major = 0, minor = 0;
  api->version(&major, &minor);
  return "nvrtc " + std::to_string(major) + "." + std::to_string(minor);
}

std::vector<int> supported_architectures() {
  const Nvrtc* api = nvrtc();
  if (api == nullptr || api->count_architectures == nullptr || api->architectures == nullptr) {
    return {};
  }
  int count = 0;
  if (api->count_architectures(&count) != 0 || count <= 0) return {};
  std::vector<int> all(static_cast<std::size_t>(count));
  if (api->architectures(all.data()) != 0) return {};
  return all;
}

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const int each : supported_architectures()) names.push_back(joined("sm_", each));
  return names;
}

std::string target_for(std::string_view architecture, const std::vector<int>& supported) {
  const int wanted = number_in(architecture);
  int same_major = 0, older = 0;
  for (const int each : supported) {
    if (each == wanted) return std::string(architecture);
    if (each > wanted) continue;
    older = std::max(older, each);
    const bool runs = each / 10 == wanted / 10 && !is_embedded(each) && !is_embedded(wanted);
    if (runs) same_major = std::max(same_major, each);
  }
  // Without the letter: what has it runs on its own architecture only.
  if (same_major > 0) return joined("sm_", same_major);
  return older > 0 ? joined("compute_", older) : std::string();
}

std::string compiler_objection(std::string_view architecture) {
  const std::string version = compiler_version();
  if (version.empty()) return kNoCompiler;
  const auto supported = supported_architectures();
  if (supported.empty() || !target_for(architecture, supported).empty()) return {};
  const auto [least, most] = std::minmax_element(supported.begin(), supported.end());
  return joined(version, " compiles for sm_", *least, " to sm_", *most,
                ", none of which runs on this device's ", architecture);
}

std::string target_for(std::string_view architecture) {
  const auto supported = supported_architectures();
  if (supported.empty()) return std::string(architecture);  // it says when it cannot
  auto target = target_for(architecture, supported);
  if (target.empty()) fail<Unsupported>(compiler_objection(architecture));
  return target;
}

MachineCode compile(std::string_view source, std::string_view target) {
  const Nvrtc* api = nvrtc();
  if (api == nullptr) fail<Unsupported>(kNoCompiler);
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
  const auto option = "--gpu-architecture=" + std::string(target);
  const char* options[] = {option.c_str(), "--std=c++17", "--ptxas-options=-v"};
  const Result result = api->compile(program, 3, options);
  MachineCode out{};
  std::size_t size = 0;
  if (api->log_size(program, &size) == 0 && size > 1) {
    out.log.resize(size);
    api->log(program, out.log.data());
    out.log.resize(size - 1);
  }
  if (result != 0) {
    fail<ToolchainError>(compiler_version(), " for ", target, ": ", api->error(result), "\n",
                         out.log);
  }
  if (target.starts_with("compute_")) {
    check(api->ptx_size(program, &size), "nvrtcGetPTXSize");
    out.bytes.resize(size);
    check(api->ptx(program, out.bytes.data()), "nvrtcGetPTX");
    out.bytes.resize(size - 1);  // the zero at its end is that of the string again
    return out;
  }
  check(api->cubin_size(program, &size), "nvrtcGetCUBINSize");
  out.bytes.resize(size);
  check(api->cubin(program, out.bytes.data()), "nvrtcGetCUBIN");
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
