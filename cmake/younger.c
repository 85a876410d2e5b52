// SPDX-License-Identifier: Apache-2.0
// What GCC's libraries take from a glibc younger than 2.28, for a library that asks none of it.
#include <sys/stat.h>

#define HIDDEN __attribute__((visibility("hidden")))

int __fxstat(int version, int file, struct stat* status);
int __fxstatat(int version, int folder, const char* path, struct stat* status, int flags);
int __xstat(int version, const char* path, struct stat* status);
int __lxstat(int version, const char* path, struct stat* status);
#if defined(__x86_64__)
enum { kStatVersion = 1 };  // _STAT_VER of that glibc
#elif defined(__aarch64__)
enum { kStatVersion = 0 };
#else
#error "which version of struct stat?"
#endif

HIDDEN int stat(const char* path, struct stat* status) {
  return __xstat(kStatVersion, path, status);
}
HIDDEN int lstat(const char* path, struct stat* status) {
  return __lxstat(kStatVersion, path, status);
}
HIDDEN int fstat(int file, struct stat* status) { return __fxstat(kStatVersion, file, status); }
HIDDEN int fstatat(int folder, const char* path, struct stat* status, int flags) {
  return __fxstatat(kStatVersion, folder, path, status, flags);
}

/// Reference counts are atomic always: nobody says that there is one thread only.
HIDDEN char __libc_single_threaded = 0;
