// SPDX-License-Identifier: Apache-2.0
#include "runtime/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

namespace ladder {
namespace {

namespace fs = std::filesystem;

/// How deep remove() goes: entries have no folders, and what somebody planted may have any number.
constexpr int kDepth = 16;

/// Without a slash or a dot at its end, which would have a link followed.
fs::path plain(const fs::path& path) {
  std::string text = path;
  while (text.size() > 1 && (text.ends_with('/') || text.ends_with("/."))) text.pop_back();
  return text;
}

int open_folder(int at, const char* name, int no_links) {
  int descriptor;
  do {
    descriptor = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | no_links);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

std::error_code last_error() { return {errno, std::generic_category()}; }

/// A descriptor that is closed at the end of its scope.
struct File {
  explicit File(int opened) : descriptor(opened) {}
  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor;
};

}  // namespace

int Folder::no_links() const { return links_ == Links::refuse ? O_NOFOLLOW : 0; }

std::optional<Folder> Folder::open(const fs::path& path, Links links) {
  const int no_links = links == Links::refuse ? O_NOFOLLOW : 0;
  const int descriptor = open_folder(AT_FDCWD, plain(path).c_str(), no_links);
  if (descriptor < 0) return std::nullopt;
  return Folder(descriptor, links);
}

std::optional<Folder> Folder::make(const fs::path& path, mode_t mode) {
  const fs::path whole = plain(path);
  if (mkdir(whole.c_str(), mode) != 0 && errno == ENOENT && whole.has_parent_path() &&
      whole.parent_path() != whole && make(whole.parent_path(), mode)) {
    mkdir(whole.c_str(), mode);
  }
  // Only the last name must be no link: homes and caches are often behind links.
  return open(whole);
}

Folder::~Folder() {
  if (descriptor_ >= 0) close(descriptor_);
}
Folder::Folder(Folder&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), links_(other.links_) {}
Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(links_, other.links_);
  return *this;
}

void Folder::fail(const char* what, const std::string& name) const {
  throw fs::filesystem_error(what, name, last_error());
}

bool Folder::is_private_to(long user) const {
  struct stat info {};
  return fstat(descriptor_, &info) == 0 && static_cast<long>(info.st_uid) == user &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::int64_t Folder::modified() const {
  struct stat info {};
  return fstat(descriptor_, &info) == 0 ? info.st_mtime : 0;
}

void Folder::touch() const { futimens(descriptor_, nullptr); }

std::optional<Folder> Folder::folder(const std::string& name) const {
  const int descriptor = open_folder(descriptor_, name.c_str(), no_links());
  if (descriptor < 0) return std::nullopt;
  return Folder(descriptor, links_);
}

std::optional<Folder> Folder::make_folder(const std::string& name, mode_t mode) const {
  mkdirat(descriptor_, name.c_str(), mode);
  return folder(name);
}

std::optional<std::string> Folder::read(const std::string& name, std::size_t most_bytes,
                                        std::error_code& why) const {
  // O_NONBLOCK: a pipe would be waited for.
  const File file(
      openat(descriptor_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | no_links()));
  struct stat info {};
  if (file.descriptor < 0 || fstat(file.descriptor, &info) != 0) {
    why = last_error();
    return std::nullopt;
  }
  why = std::make_error_code(std::errc::invalid_argument);
  if (!S_ISREG(info.st_mode)) return std::nullopt;
  std::string bytes;
  why = std::make_error_code(std::errc::file_too_large);
  if (info.st_size > static_cast<off_t>(most_bytes)) return std::nullopt;
  bytes.resize(static_cast<std::size_t>(info.st_size) + 1);  // 1: to see the end, or growth
  std::size_t size = 0;
  while (true) {
    if (size == bytes.size()) {
      if (size > most_bytes) return std::nullopt;
      bytes.resize(2 * size);
    }
    const auto got = ::read(file.descriptor, bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      why = last_error();
      return std::nullopt;
    }
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  bytes.resize(size);
  why.clear();
  return bytes;
}

std::optional<std::string> Folder::read(const std::string& name, std::size_t most_bytes) const {
  std::error_code ignored;
  return read(name, most_bytes, ignored);
}

std::optional<struct stat> Folder::about(const std::string& name) const {
  struct stat info {};
  if (fstatat(descriptor_, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return info;
}

std::optional<struct stat> Folder::about_target(const std::string& name) const {
  if (links_ == Links::refuse) return about(name);
  struct stat info {};
  if (fstatat(descriptor_, name.c_str(), &info, 0) != 0) return std::nullopt;
  return info;
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> all;
  const int again = open_folder(descriptor_, ".", 0);  // a list has a place of its own in it
  if (again < 0) return all;
  const std::unique_ptr<DIR, int (*)(DIR*)> list(fdopendir(again), closedir);
  if (list == nullptr) {
    close(again);
    return all;
  }
  while (const dirent* entry = readdir(list.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") all.push_back(name);
  }
  return all;
}

void Folder::write_new(const std::string& name, std::string_view bytes, mode_t mode) const {
  const File file(openat(descriptor_, name.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (file.descriptor < 0) fail("cannot make", name);
  const auto stop = [&] {
    const int why = errno;
    unlinkat(descriptor_, name.c_str(), 0);
    errno = why;
    fail("cannot write", name);
  };
  while (!bytes.empty()) {
    const auto written = write(file.descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) stop();
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  if (fsync(file.descriptor) != 0) stop();
}

void Folder::rename(const std::string& from, const std::string& to) const {
  if (renameat(descriptor_, from.c_str(), descriptor_, to.c_str()) != 0)
    fail("cannot rename", from);
}

void Folder::sync() const { fsync(descriptor_); }  // where it cannot, the rename stands

std::int64_t Folder::remove(const std::string& name, int depth) const {
  const auto info = about(name);
  if (!info) return 0;
  if (!S_ISDIR(info->st_mode)) {
    const bool gone = unlinkat(descriptor_, name.c_str(), 0) == 0;
    return gone && S_ISREG(info->st_mode) ? info->st_size : 0;
  }
  std::int64_t bytes = 0;
  // Never through a link, whatever this folder allows elsewhere.
  const Folder inside(open_folder(descriptor_, name.c_str(), O_NOFOLLOW), Links::refuse);
  if (inside.descriptor_ >= 0 && depth < kDepth) {
    for (const auto& each : inside.names()) bytes += inside.remove(each, depth + 1);
  }
  unlinkat(descriptor_, name.c_str(), AT_REMOVEDIR);
  return bytes;
}

std::int64_t Folder::bytes_in(const std::string& name) const {
  std::int64_t bytes = 0;
  if (const auto inside = folder(name)) {
    for (const auto& each : inside->names()) {
      const auto info = inside->about(each);
      if (info && S_ISREG(info->st_mode)) bytes += info->st_size;
    }
  }
  return bytes;
}

std::int64_t seconds_now() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

std::string random_hex(std::size_t bytes) {
  std::string text;
  while (text.size() < 2 * bytes) {
    unsigned char byte = 0;
    if (getentropy(&byte, 1) != 0) continue;  // it fails only where the system is out of order
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace ladder
