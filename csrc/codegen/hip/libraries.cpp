// SPDX-License-Identifier: Apache-2.0
#include "codegen/hip/libraries.h"

#include <dlfcn.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#else
#include <link.h>
#endif

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <mutex>

namespace ladder::hip {
namespace {

std::mutex mutex;
std::vector<std::string>& added() {
  static auto& all = *new std::vector<std::string>;
  return all;
}

/// Paths of the libraries that this process has loaded.
std::vector<std::string> all_loaded() {
  std::vector<std::string> paths;
#if defined(__APPLE__)
  for (std::uint32_t i = 0; i < _dyld_image_count(); ++i) {
    if (const char* path = _dyld_get_image_name(i); path != nullptr) paths.emplace_back(path);
  }
#else
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        static_cast<std::vector<std::string>*>(data)->emplace_back(info->dlpi_name);
        return 0;
      },
      &paths);
#endif
  return paths;
}

}  // namespace

void add_directory(std::string directory) {
  const std::lock_guard lock(mutex);
  added().push_back(std::move(directory));
}

std::vector<std::string> directories() {
  const std::lock_guard lock(mutex);
  return added();
}

std::vector<std::string> directories_for_others() {
  std::vector<std::string> all = directories();
  if (const std::filesystem::path driver = loaded("libamdhip64"); !driver.empty()) {
    all.insert(all.begin(), driver.parent_path().string());
  }
  return all;
}

std::vector<std::string> roots() {
  std::vector<std::string> all;
  if (const char* root = std::getenv("ROCM_PATH"); root != nullptr) all.emplace_back(root);
  all.emplace_back("/opt/rocm");
  return all;
}

// By the names of files: a wheel may have given the library a name of its own, with a hash in it.
std::string loaded(std::string_view name) {
  for (const std::filesystem::path path : all_loaded()) {
    const std::string file = path.filename().string();
    if (!file.starts_with(name)) continue;
    // "libamdhip64.so.6", "libamdhip64-0123abcd.so"; not "libamdhip64_else.so".
    const char next = file.size() > name.size() ? file[name.size()] : '\0';
    if (next == '.' || next == '-') return path.string();
  }
  return {};
}

void* open_library(const std::string& name, const std::string& beside) {
  if (const auto path = loaded(name); !path.empty()) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  std::vector<std::string> places;
  if (!beside.empty()) places.push_back(beside + "/");
  for (const auto& directory : directories()) places.push_back(directory + "/");
  places.emplace_back();  // where the loader looks
  for (const auto& root : roots()) places.push_back(root + "/lib/");
  for (const auto& place : places) {
    for (const char* release : {"", ".7", ".6", ".5"}) {
      const std::string path = place + name + ".so" + release;
      if (void* library = dlopen(path.c_str(), RTLD_NOW)) return library;
    }
  }
  return nullptr;
}

}  // namespace ladder::hip
