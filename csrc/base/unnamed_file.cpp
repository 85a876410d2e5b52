// SPDX-License-Identifier: Apache-2.0
#include "base/unnamed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace ladder {

int unnamed_file() {
#if defined(__linux__)
  return memfd_create("ladder", MFD_CLOEXEC);
#else
  // In a folder that may be written, and for a moment with a name: a process that is killed then
  // leaves an empty file.
  char path[] = "/tmp/ladder-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return -1;
  unlink(path);
  fcntl(file, F_SETFD, FD_CLOEXEC);
  return file;
#endif
}

}  // namespace ladder
