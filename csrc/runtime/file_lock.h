// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "runtime/folder.h"

namespace ladder {

/// A lock that one owner holds at a time, across threads and processes: a file in a folder, which
/// may be removed by its holder. Given up at the end of its life, or with the process; a child that
/// inherited it (fork) does not keep it.
class FileLock {
 public:
  enum class State {
    held,
    busy,  ///< somebody else held it all the time
    none,  ///< this file system has no locks, or what is there is no file of ours
  };

  /// Waits at most `patience`.
  FileLock(const Folder& folder, const std::string& name, std::chrono::milliseconds patience);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  State state() const { return state_; }
  bool held() const { return state_ == State::held; }

 private:
  int descriptor_ = -1;
  long owner_ = 0;  // process
  State state_ = State::none;
};

}  // namespace ladder
