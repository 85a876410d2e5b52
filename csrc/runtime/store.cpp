// SPDX-License-Identifier: Apache-2.0
#include "runtime/store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/files.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;

/// The nearest folder above `path` that exists, itself included.
fs::path existing(fs::path path) {
  std::error_code ignored;
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

int number_at(const json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_number_integer() ? at->get<int>() : 0;
}

json read_json(const fs::path& path) {
  const auto text = read_file(path);
  if (!text) return {};
  json value = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return value.is_object() && number_at(value, "format") == kFormat ? value : json{};
}

/// A string, or nothing where the file says something else.
std::optional<std::string> text_at(const json& object, const std::string& name) {
  const auto at = object.find(name);
  if (at == object.end() || !at->is_string()) return std::nullopt;
  return at->get<std::string>();
}

}  // namespace

Store::Store(std::string folder, Options options) : folder_(std::move(folder)), options_(options) {
  if (options_.user < 0) options_.user = static_cast<long>(geteuid());
}

/// Owned by the user and not open to the writing of others, so that what lies there is theirs.
bool Store::trusted(const std::string& path) const {
  if (options_.trust_kernels) return true;
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && static_cast<long>(info.st_uid) == options_.user &&
         (info.st_mode & S_IWOTH) == 0;
}

bool Store::writable() const {
  const fs::path at = existing(folder_);
  // A folder that is yet to be made will be this user's, also in one that everybody shares.
  return (at != fs::path(folder_) || trusted(at)) && access(at.c_str(), W_OK) == 0;
}

std::optional<cuda::Binary> Store::find(const KernelKey& key) const {
  const fs::path entry = fs::path(folder_) / "kernels" / key.digest();
  for (const auto& path : {fs::path(folder_), entry, entry / "kernel.cubin"}) {
    if (!trusted(path)) return std::nullopt;
  }
  if (!options_.trust_kernels && access(folder_.c_str(), W_OK) != 0) return std::nullopt;
  const json about = read_json(entry / "about.json");
  const auto cubin = read_file(entry / "kernel.cubin"), source = read_file(entry / "source.cu");
  if (!cubin || source != key.source || text_at(about, "cubin") != digest_of(*cubin) ||
      text_at(about, "compiler") != key.compiler || text_at(about, "flags") != key.flags) {
    return std::nullopt;
  }
  return cuda::Binary{*cubin,
                      number_at(about, "registers"),
                      number_at(about, "stack_bytes"),
                      number_at(about, "spill_bytes"),
                      "",
                      text_at(about, "warning").value_or("")};
}

void Store::keep(const KernelKey& key, const cuda::Binary& binary) const {
  const fs::path kernels = fs::path(folder_) / "kernels";
  const fs::path staged = kernels / (key.digest() + "." + std::to_string(getpid()) + ".staged");
  const json about{{"format", kFormat},
                   {"compiler", key.compiler},
                   {"flags", key.flags},
                   {"cubin", digest_of(binary.cubin)},
                   {"registers", binary.registers},
                   {"stack_bytes", binary.stack_bytes},
                   {"spill_bytes", binary.spill_bytes},
                   {"warning", binary.warning}};
  // Under the lock of this digest, what others staged for it is of processes that died.
  for (const auto& left : fs::directory_iterator(kernels)) {
    const std::string name = left.path().filename();
    if (name.starts_with(key.digest()) && name.ends_with(".staged")) fs::remove_all(left.path());
  }
  fs::create_directories(staged);
  write_synced(staged / "source.cu", key.source);
  write_synced(staged / "kernel.cubin", binary.cubin);
  write_synced(staged / "about.json", about.dump(2) + "\n");
  // What is in the way is torn or altered.
  fs::remove_all(kernels / key.digest());
  fs::rename(staged, kernels / key.digest());
  sync_folder(kernels);
}

cuda::Binary Store::find_or(const KernelKey& key,
                            const std::function<cuda::Binary()>& compile) const {
  if (auto found = find(key)) return *found;
  if (!writable()) return compile();
  std::error_code failed;
  fs::create_directories(fs::path(folder_) / "kernels", failed);
  if (failed) return compile();
  const FileLock lock(fs::path(folder_) / "kernels" / (key.digest() + ".lock"));
  if (auto found = find(key)) return *found;  // another process was faster
  cuda::Binary binary = compile();
  try {
    keep(key, binary);
  } catch (const fs::filesystem_error&) {
    // A full disk costs the next process a compilation; it must not cost this one its kernel.
  }
  return binary;
}

std::optional<std::string> Store::plan(const std::string& problem) const {
  const json plans = read_json(fs::path(folder_) / "plans.json");
  const auto all = plans.find("plans");
  if (all == plans.end() || !all->is_object()) return std::nullopt;
  return text_at(*all, problem);
}

void Store::keep_plan(const std::string& problem, const std::string& schedule) const {
  if (!writable()) return;
  try {
    fs::create_directories(folder_);
    const fs::path path = fs::path(folder_) / "plans.json";
    const FileLock lock(fs::path(folder_) / "plans.lock");
    json plans = read_json(path);
    plans["format"] = kFormat;
    if (!plans["plans"].is_object()) plans["plans"] = json::object();
    plans["plans"][problem] = schedule;
    const fs::path staged = path.string() + "." + std::to_string(getpid()) + ".staged";
    write_synced(staged, plans.dump(2) + "\n");
    fs::rename(staged, path);
    sync_folder(folder_);
  } catch (const fs::filesystem_error&) {
    // As above: the plan is in use all the same.
  }
}

std::string user_cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const auto chosen = variable("LADDER_CACHE"); !chosen.empty()) return chosen;
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/ladder";
  if (const auto home = variable("HOME"); !home.empty()) return home + "/.cache/ladder";
  return (fs::temp_directory_path() / ("ladder-" + std::to_string(geteuid()))).string();
}

}  // namespace ladder
