// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/hmac.h"
#include "base/joined.h"
#include "runtime/checked_json.h"
#include "runtime/file_lock.h"
#include "runtime/user_key.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using nlohmann::json;

constexpr int kKernelFormat = 2;

// More than anything ladder writes; what is larger was put there by somebody.
constexpr std::size_t kMostAboutBytes = 1 << 20, kMostSourceBytes = 16 << 20,
                      kMostBinaryBytes = 64 << 20;

// After that long the holder is taken for stuck: its kernel is compiled here too, and not kept.
constexpr auto kKernelPatience = 60s;

constexpr std::int64_t kTouchSeconds = 60;

/// The nearest folder above `path` that exists.
fs::path existing(fs::path path) {
  std::error_code ignored;
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path.empty() ? "." : path;
}

/// Of an entry: everything that is used of it, and what makes it the entry of its key, which
/// `about` (without the code itself) repeats.
std::string code_of(const std::string& key, const std::string& about, std::string_view source,
                    std::string_view cubin) {
  // Lengths keep the end of one part from passing for the start of the next.
  const std::string lengths =
      joined("ladder kernel ", about.size(), " ", source.size(), " ", cubin.size(), "\n");
  std::string message;
  message.reserve(lengths.size() + about.size() + source.size() + cubin.size());
  message.append(lengths).append(about).append(source).append(cubin);
  return hmac_sha256(key, message);
}

bool authentic(json about, const std::string& source, const std::string& cubin,
               const std::optional<std::string>& key) {
  const auto code = text_at(about, "code");
  if (!code || !key) return false;
  about.erase("code");
  return equal_in_constant_time(*code, code_of(*key, written(about), source, cubin));
}

}  // namespace

KernelStore::KernelStore(std::string folder, Options options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  if (options_.user < 0) options_.user = static_cast<long>(geteuid());
  if (options_.key_folder.empty()) options_.key_folder = user_cache_folder();
}

bool KernelStore::owned(const Folder& folder) const {
  return options_.trust_kernels || folder.is_private_to(options_.user);
}

std::optional<Folder> KernelStore::owned(const std::optional<Folder>& inside,
                                         const std::string& name) const {
  auto found = inside ? inside->folder(name) : std::nullopt;
  if (!found || !owned(*found)) return std::nullopt;
  return found;
}

std::optional<Folder> KernelStore::open() const {
  auto found = Folder::open(folder_, options_.trust_kernels ? Links::follow : Links::refuse);
  if (!found || !owned(*found)) return std::nullopt;
  return found;
}

std::string KernelStore::objection() const {
  std::error_code ignored;
  if (fs::symlink_status(folder_, ignored).type() == fs::file_type::not_found) {
    // A folder that is yet to be made will be this user's, also in one that everybody shares.
    const fs::path above = existing(folder_);
    if (fs::is_directory(above, ignored) && access(above.c_str(), W_OK) == 0) return {};
    return joined("cannot be made in ", above.string());
  }
  const auto folder = Folder::open(folder_);
  if (!folder) return "is a symbolic link or no folder";
  if (!folder->is_private_to(options_.user)) {
    return "is not this user's alone to write (chown, chmod go-w)";
  }
  return faccessat(folder->descriptor(), ".", W_OK, AT_EACCESS) == 0 ? "" : "is read-only";
}

std::optional<MachineCode> KernelStore::find(const KernelKey& key) const {
  const auto entry = owned(owned(open(), "kernels"), key.digest());
  if (!entry) return std::nullopt;
  const json about = parsed_json(entry->read("about.json", kMostAboutBytes), kKernelFormat);
  const auto source = entry->read("source.cu", kMostSourceBytes),
             cubin = entry->read("kernel.cubin", kMostBinaryBytes);
  if (!cubin || source != key.source || text_at(about, "cubin") != digest_of(*cubin) ||
      text_at(about, "compiler") != key.compiler || text_at(about, "flags") != key.flags) {
    return std::nullopt;
  }
  if (!options_.trust_kernels &&
      !authentic(about, *source, *cubin, user_key(options_.key_folder, options_.user))) {
    return std::nullopt;
  }
  if (entry->modified() + kTouchSeconds < seconds_now()) entry->touch();  // for clean()
  return MachineCode{*cubin,
                     static_cast<int>(number_at(about, "registers")),
                     static_cast<int>(number_at(about, "stack_bytes")),
                     static_cast<int>(number_at(about, "spill_bytes")),
                     "",
                     text_at(about, "warning").value_or("")};
}

void KernelStore::keep(const Folder& kernels, const KernelKey& key,
                       const MachineCode& binary) const {
  const auto secret = user_key(options_.key_folder, options_.user);
  if (!secret) return;  // nobody would load it
  const std::string digest = key.digest(), staged = digest + "." + random_hex(8) + ".staged";
  json about{{"format", kKernelFormat},
             {"compiler", key.compiler},
             {"flags", key.flags},
             {"cubin", digest_of(binary.bytes)},
             {"registers", binary.registers},
             {"stack_bytes", binary.stack_bytes},
             {"spill_bytes", binary.spill_bytes},
             {"warning", binary.warning}};
  about["code"] = code_of(*secret, written(about), key.source, binary.bytes);
  try {
    const auto folder = kernels.make_folder(staged, 0755);
    if (!folder || !folder->is_private_to(options_.user)) return;
    folder->write_new("source.cu", key.source, 0644);
    folder->write_new("kernel.cubin", binary.bytes, 0644);
    folder->write_new("about.json", written(about) + "\n", 0644);
    folder->sync();
    kernels.remove(digest);  // what is in the way is torn, altered or foreign
    kernels.rename(staged, digest);
    kernels.sync();
  } catch (const fs::filesystem_error&) {
    // A full disk costs the next process a compilation; it must not cost this one its kernel.
    kernels.remove(staged);
  }
}

MachineCode KernelStore::find_or(const KernelKey& key,
                                 const std::function<MachineCode()>& compile) const {
  if (auto found = find(key)) return *found;
  if (!writable()) return compile();
  const auto folder = Folder::make(folder_, 0755);
  if (!folder || !folder->is_private_to(options_.user)) return compile();
  // A link or a file of this name is somebody's; so is a folder that others can write.
  const auto kernels = folder->make_folder("kernels", 0755);
  if (!kernels || !kernels->is_private_to(options_.user)) return compile();
  const FileLock lock(*kernels, key.digest() + ".lock", kKernelPatience);
  if (auto found = find(key)) return *found;  // another process was faster
  MachineCode binary = compile();
  if (lock.state() == FileLock::State::busy) return binary;
  if (lock.held()) {
    // What others staged for this digest is of processes that died.
    for (const std::string& name : kernels->names()) {
      if (name.starts_with(key.digest()) && name.ends_with(".staged")) kernels->remove(name);
    }
  }
  keep(*kernels, key, binary);
  look_at_size(*kernels);
  return binary;
}

std::optional<StoredPlan> KernelStore::measured_plan(const std::string& problem) const {
  // Links may be followed: a hub's cache has nothing else, and a plan is only text.
  const auto folder = Folder::open(folder_, Links::follow);
  return folder ? read_plan(*folder, problem) : std::nullopt;
}

std::optional<std::string> KernelStore::plan(const std::string& problem) const {
  auto found = measured_plan(problem);
  if (!found) return std::nullopt;
  return std::move(found->schedule);
}

void KernelStore::keep_plan(const std::string& problem, const StoredPlan& plan) const {
  if (!writable()) return;
  const auto folder = Folder::make(folder_, 0755);
  const auto read = Folder::open(folder_, Links::follow);
  if (!folder || !read || !folder->is_private_to(options_.user)) return;
  write_plan(*folder, *read, problem, plan);
}

std::string user_cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  std::error_code failed;
  const auto resolved = [&](const fs::path& path) {
    const fs::path all = fs::weakly_canonical(path, failed);
    return failed ? path : all;
  };
  if (const auto folder = variable("LADDER_CACHE"); !folder.empty()) return resolved(folder);
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return resolved(cache + "/ladder");
  }
  if (const auto home = variable("HOME"); !home.empty()) return resolved(home + "/.cache/ladder");
  // Where everybody may put a link of this name, so the name is not resolved.
  const fs::path shared = fs::temp_directory_path(failed);
  return (failed ? fs::path("/tmp") : resolved(shared)) / joined("ladder-", geteuid());
}

}  // namespace ladder
