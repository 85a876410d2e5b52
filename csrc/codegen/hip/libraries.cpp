// SPDX-License-Identifier: Apache-2.0
#include "codegen/hip/libraries.h"

#include <dlfcn.h>
#include <link.h>

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
  struct Search {
    std::string_view name;
    std::string path;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const std::filesystem::path path = info->dlpi_name;
        const std::string file = path.filename().string();
        const auto rest = file.substr(0, wanted.name.size()) == wanted.name
                              ? file.substr(wanted.name.size())
                              : std::string("?");
        // "libamdhip64.so.6", "libamdhip64-0123abcd.so"; not "libamdhip64_else.so".
        if (rest.empty() || (rest[0] != '.' && rest[0] != '-')) return 0;
        wanted.path = path.string();
        return 1;
      },
      &search);
  return search.path;
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
