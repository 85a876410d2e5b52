// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__APPLE__)
#include <crt_externs.h>
#else
extern char** environ;
#endif

namespace ladder {

/// This process's environment, as posix_spawn takes it. On macOS programs only, not libraries, may
/// name `environ` (environ(7) there).
inline char** environment() {
#if defined(__APPLE__)
  return *_NSGetEnviron();
#else
  return environ;
#endif
}

}  // namespace ladder
