// SPDX-License-Identifier: Apache-2.0
#include "base/unnamed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace ladder {

int unnamed_file() {
#if defined(__linux__)
  return memfd_create("ladder", MFD_CLOEXEC);
#else
  // In a folder that may be written, and for a moment with a name: a process that is killed then
  // leaves an empty file.
  std::error_code failed;
  const auto folder = std::filesystem::temp_directory_path(failed);
  if (failed) {
    errno = failed.value();
    return -1;
  }
  std::string path = (folder / "ladder-XXXXXX").string();
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file >= 0) unlink(path.c_str());
  return file;
#endif
}

}  // namespace ladder
