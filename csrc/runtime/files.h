// SPDX-License-Identifier: Apache-2.0
//
// Files that are either whole or absent, and locks that processes share.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace ladder {

/// The bytes of a file, or nothing when it cannot be read.
std::optional<std::string> read_file(const std::filesystem::path& path);

/// Writes a file and waits until the disk has it. Throws std::filesystem::filesystem_error.
void write_synced(const std::filesystem::path& path, std::string_view bytes);

/// Waits until the disk has the names in a folder.
void sync_folder(const std::filesystem::path& folder);

/// Held by one owner at a time, across threads and processes, released with the process at the
/// latest. Where the file system has no locks it holds nothing: work is then done twice, not wrong.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace ladder
