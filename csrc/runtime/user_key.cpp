// SPDX-License-Identifier: Apache-2.0
#include "runtime/user_key.h"

#include "runtime/file_lock.h"
#include "runtime/folder.h"

namespace ladder {
namespace {

constexpr const char* kName = "key";
constexpr std::size_t kBytes = 32;

/// The key, where what has its name is one.
std::optional<std::string> stored(const Folder& folder, long user) {
  const auto info = folder.about(kName);
  if (!info || !S_ISREG(info->st_mode) || static_cast<long>(info->st_uid) != user ||
      (info->st_mode & 0077) != 0 || info->st_nlink != 1) {
    return std::nullopt;
  }
  auto key = folder.read(kName, 2 * kBytes);
  if (!key || key->size() != 2 * kBytes) return std::nullopt;
  return key;
}

}  // namespace

std::optional<std::string> user_key(const std::string& path, long user) {
  if (const auto folder = Folder::open(path)) {
    if (!folder->is_private_to(user)) return std::nullopt;
    if (auto key = stored(*folder, user)) return key;
  }
  const auto folder = Folder::make(path, 0700);
  if (!folder || !folder->is_private_to(user)) return std::nullopt;
  try {
    const FileLock lock(*folder, "key.lock", std::chrono::seconds(10));
    if (auto key = stored(*folder, user)) return key;  // another process was faster
    if (lock.state() == FileLock::State::busy) return std::nullopt;
    // What has the name is a link, has been readable by others, or is torn: no key any more, and
    // what was kept with it is compiled again.
    const std::string staged = "key." + random_hex(8) + ".staged";
    folder->write_new(staged, random_hex(kBytes), 0600);
    try {
      folder->remove(kName);
      folder->rename(staged, kName);
    } catch (const std::filesystem::filesystem_error&) {
      folder->remove(staged);
      throw;
    }
    folder->sync();
  } catch (const std::filesystem::filesystem_error&) {
    return std::nullopt;
  }
  return stored(*folder, user);
}

}  // namespace ladder
