// SPDX-License-Identifier: Apache-2.0
//
// Files in a folder that others may have filled: an open folder is what every name is looked up in
// (openat), so that nobody changes it for another one halfway, and no name is believed to be what
// it seems. Symbolic links are not followed, nothing is opened that is no regular file, nothing
// that exists is written into.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ladder {

/// Whether a symbolic link stands for what it points at. For what the caller trusts, such as the
/// snapshots of a hub's cache, which are links.
enum class Links { refuse, follow };

/// An open folder; closed at the end of its life.
class Folder {
 public:
  /// Nothing when there is no folder at `path`. The last name of `path` is no link with
  /// Links::refuse, which is then also how names in the folder are opened.
  static std::optional<Folder> open(const std::filesystem::path& path, Links links = Links::refuse);
  /// The same, made with `mode` if need be, and so the folders above it.
  static std::optional<Folder> make(const std::filesystem::path& path, mode_t mode);
  ~Folder();
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;

  int descriptor() const { return descriptor_; }
  /// Whether `user` owns the folder and nobody else (but root) can add or change names in it.
  bool is_private_to(long user) const;
  /// Seconds since 1970 at which the folder was last touched, or names in it changed.
  std::int64_t modified() const;
  /// Sets modified() to now, if the system lets us.
  void touch() const;

  std::optional<Folder> folder(const std::string& name) const;
  std::optional<Folder> make_folder(const std::string& name, mode_t mode) const;
  /// The bytes of a regular file of at most `most_bytes`. Otherwise nothing, and why:
  /// no_such_file_or_directory, file_too_large, invalid_argument for what is no regular file.
  std::optional<std::string> read(const std::string& name, std::size_t most_bytes,
                                  std::error_code& why) const;
  std::optional<std::string> read(const std::string& name, std::size_t most_bytes) const;
  /// Of a name itself, not of what it may point at; nothing when there is none.
  std::optional<struct stat> about(const std::string& name) const;
  /// Of what a name points at, where names in the folder may be links.
  std::optional<struct stat> about_target(const std::string& name) const;
  /// All names but . and .., in no order.
  std::vector<std::string> names() const;

  // These throw std::filesystem::filesystem_error.

  /// Writes a file that does not exist yet and waits until the disk has it. A file that cannot be
  /// written whole is removed again.
  void write_new(const std::string& name, std::string_view bytes, mode_t mode) const;
  /// In one step; what has the name `to` already is replaced if it is a file or an empty folder.
  void rename(const std::string& from, const std::string& to) const;
  /// Waits until the disk has the names of the folder.
  void sync() const;

  /// Removes a file, a link or a folder with all that is in it, as far as the system lets us.
  /// Returns the bytes of the files that are gone.
  std::int64_t remove(const std::string& name) const { return remove(name, 0); }
  /// Bytes of the files in a folder of that name, its folders left out.
  std::int64_t bytes_in(const std::string& name) const;

 private:
  Folder(int descriptor, Links links) : descriptor_(descriptor), links_(links) {}
  int no_links() const;
  std::int64_t remove(const std::string& name, int depth) const;
  [[noreturn]] void fail(const char* what, const std::string& name) const;

  int descriptor_ = -1;
  Links links_ = Links::refuse;
};

/// Since 1970, as in struct stat.
std::int64_t seconds_now();

/// `bytes` bytes that nobody can guess, as hexadecimal digits.
std::string random_hex(std::size_t bytes);

}  // namespace ladder
