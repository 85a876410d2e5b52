// SPDX-License-Identifier: Apache-2.0
// What a store throws away.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "runtime/file_lock.h"
#include "runtime/kernel_store.h"

namespace ladder {
namespace {

// A file whose time says when the size of a store was last looked at.
constexpr const char* kLooked = "looked";
constexpr std::size_t kDigest = 32;

struct Entry {
  std::string name;
  std::int64_t used, bytes;
};

bool is_digest(const std::string& name) {
  return name.size() == kDigest && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// Removes `name` and the lock of its digest. The bytes that are gone; nothing where somebody has
/// the lock, or the system does not let us. Who reads an entry meanwhile finds it whole or not at
/// all.
std::optional<std::int64_t> remove_unlocked(const Folder& kernels, const std::string& name) {
  const std::string digest = name.substr(0, kDigest), lock_name = digest + ".lock";
  const FileLock lock(kernels, lock_name, std::chrono::milliseconds(0));
  if (lock.state() == FileLock::State::busy) return std::nullopt;
  std::int64_t bytes;
  if (name == digest) {
    // In one step, so that nobody finds half an entry; what is left after a kill is staged.
    const std::string leaving = digest + "." + random_hex(8) + ".staged";
    try {
      kernels.rename(name, leaving);
    } catch (const std::filesystem::filesystem_error&) {
      return std::nullopt;
    }
    bytes = kernels.remove(leaving);
  } else {
    bytes = kernels.remove(name);
  }
  if (!kernels.about(digest)) kernels.remove(lock_name);  // while it is held: see FileLock
  return bytes;
}

}  // namespace

KernelStore::Cleaned KernelStore::clean(const Cleaning& what) const {
  Cleaned done;
  const auto folder = Folder::open(folder_);
  if (!folder || !folder->is_private_to(options_.user)) return done;
  if (what.plans) {
    const FileLock lock(*folder, "plans.lock", std::chrono::seconds(10));
    for (const std::string& name : folder->names()) {
      const bool plans = name.starts_with("plans.json");
      if (plans && lock.state() != FileLock::State::busy)
        done.removed_bytes += folder->remove(name);
    }
  }
  const auto kernels = folder->folder("kernels");
  if (!kernels || !kernels->is_private_to(options_.user)) return done;
  std::vector<Entry> entries;
  for (const std::string& name : kernels->names()) {
    if (is_digest(name)) {
      const auto info = kernels->about(name);
      if (info) entries.push_back({name, info->st_mtime, kernels->bytes_in(name)});
    } else if (is_digest(name.substr(0, kDigest))) {
      // Staged by a process that died, or a lock without an entry: unless it is in use now.
      const bool lock = name.ends_with(".lock");
      if (!lock || !kernels->about(name.substr(0, kDigest))) {
        done.removed_bytes += remove_unlocked(*kernels, name).value_or(0);
      }
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) done.kept_bytes += entry.bytes;
  done.kept_kernels = static_cast<std::int64_t>(entries.size());
  // Some room below the limit, or the next kernel would bring it back here.
  const bool full = done.kept_bytes > what.capacity_bytes;
  const std::int64_t most_bytes = full ? what.capacity_bytes / 10 * 9 : what.capacity_bytes;
  const std::int64_t time = seconds_now();
  for (const Entry& entry : entries) {
    const std::int64_t unused = std::max<std::int64_t>(time - entry.used, 0);
    const bool old = unused >= what.unused_seconds;
    const bool over = done.kept_bytes > most_bytes && unused >= what.in_use_seconds;
    if (!old && !over) continue;
    const auto bytes = remove_unlocked(*kernels, entry.name);
    if (!bytes) continue;
    ++done.removed_kernels;
    --done.kept_kernels;
    done.removed_bytes += *bytes;
    done.kept_bytes -= entry.bytes;
  }
  return done;
}

void KernelStore::look_at_size(const Folder& kernels) const {
  if (options_.capacity_bytes <= 0) return;
  if (const auto info = kernels.about(kLooked)) {
    if (info->st_mtime + options_.looks_seconds > seconds_now()) return;
    kernels.remove(kLooked);
  }
  try {
    kernels.write_new(kLooked, "", 0644);
  } catch (const std::filesystem::filesystem_error&) {
    return;  // another process looks
  }
  Cleaning what;
  what.capacity_bytes = options_.capacity_bytes;
  clean(what);
}

}  // namespace ladder
