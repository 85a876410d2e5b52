// SPDX-License-Identifier: Apache-2.0
#include "runtime/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace ladder {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// It asks again and again instead of waiting in flock: a holder that was stopped, or a child that
// outlived a killed holder, must not stop everybody else for ever.
FileLock::FileLock(const Folder& folder, const std::string& name,
                   std::chrono::milliseconds patience) {
  const auto end = Clock::now() + patience;
  auto pause = 1ms;
  while (true) {
    descriptor_ = openat(folder.descriptor(), name.c_str(),
                         O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat mine {};
    if (descriptor_ < 0 || fstat(descriptor_, &mine) != 0) return;
    // A second name may be one that another program locks.
    if (!S_ISREG(mine.st_mode) || mine.st_uid != geteuid() || mine.st_nlink > 1) return;
    int result;
    do {
      result = flock(descriptor_, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
      const auto there = folder.about(name);
      if (there && there->st_ino == mine.st_ino && there->st_dev == mine.st_dev) {
        state_ = State::held;
        owner_ = getpid();
        return;
      }
      flock(descriptor_, LOCK_UN);  // its last holder removed it: the next file is the lock
    } else if (errno != EWOULDBLOCK) {
      return;
    }
    close(descriptor_);
    descriptor_ = -1;
    if (Clock::now() >= end) {
      state_ = State::busy;
      return;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, 50ms);
  }
}

FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  // Closing is not enough: the lock is that of the open file, which children share. Nor may a child
  // give up what its parent holds.
  if (held() && owner_ == getpid()) flock(descriptor_, LOCK_UN);
  close(descriptor_);
}

}  // namespace ladder
