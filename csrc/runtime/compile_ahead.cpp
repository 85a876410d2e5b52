// SPDX-License-Identifier: Apache-2.0
#include "runtime/compile_ahead.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/environment.h"
#include "base/unnamed_file.h"
#include "codegen/target.h"
#include "runtime/in_parallel.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

/// The helper program, beside the library that this function is in.
std::string helper() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&helper), &info) == 0) return {};
  const fs::path path = fs::path(info.dli_fname).parent_path() / "ladder-nvrtc";
  return access(path.c_str(), X_OK) == 0 ? path.string() : std::string();
}

/// A file without a name that has `text`, at its beginning; -1 when there is no room for it. No
/// pipe: it could fill while the helper waits for a lock. Nor a file in a folder: what is killed
/// leaves it.
int file_of(std::string_view text) {
  const int file = unnamed_file();
  while (file >= 0 && !text.empty()) {
    const auto written = write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      close(file);
      return -1;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  if (file >= 0) lseek(file, 0, SEEK_SET);
  return file;
}

/// Starts the helper with `source` as its input; -1 when that fails.
pid_t start(const std::string& program, const KernelKey& key, const KernelStore& store,
            const Target& target) {
  const int input = file_of(key.source);
  if (input < 0) return -1;
  std::vector<std::string> words{program, store.folder(), store.key_folder(),
                                 std::string(target.name), key.flags};
  for (const auto& directory : target.toolchain.directories()) words.push_back(directory);
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input, 0);
  for (int output : {1, 2}) {
    posix_spawn_file_actions_addopen(&files, output, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = -1;
  if (posix_spawn(&child, program.c_str(), &files, nullptr, arguments.data(), environment()) != 0) {
    child = -1;
  }
  posix_spawn_file_actions_destroy(&files);
  close(input);
  return child;
}

void wait_for(pid_t child) {
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

/// Which thread may have a helper process.
class Turns {
 public:
  /// Waits for its turn; false where another thread has compiled `digest` meanwhile, or where
  /// nothing is to be started any more.
  bool take(const std::string& digest, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!compiling_.insert(digest).second) {
      changed_.wait_until(lock, deadline, [&] { return !compiling_.contains(digest); });
      return false;
    }
    changed_.wait_until(lock, deadline, [&] { return free_ > 0 || stopped_; });
    if (free_ > 0 && !stopped_ && std::chrono::steady_clock::now() < deadline) {
      --free_;
      return true;
    }
    compiling_.erase(digest);
    changed_.notify_all();
    return false;
  }
  void give_back(const std::string& digest) {
    const std::lock_guard lock(mutex_);
    ++free_;
    compiling_.erase(digest);
    changed_.notify_all();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::string> compiling_;  // or waiting for it
  unsigned free_ = std::max(1u, std::thread::hardware_concurrency());
  bool stopped_ = false;
};

/// Of this process: a forked child has none of its parent's threads.
Turns& turns() {
  static std::mutex mutex;
  static std::map<pid_t, Turns*> all;  // never destroyed: threads may wait to the end
  const std::lock_guard lock(mutex);
  Turns*& mine = all[getpid()];
  if (mine == nullptr) mine = new Turns;
  return *mine;
}

void compile_one(const std::string& program, const KernelKey& key, const KernelStore& store,
                 const Target& target, Deadline deadline) {
  const std::string digest = key.digest();
  Turns& all = turns();
  if (!all.take(digest, deadline)) return;
  if (!store.find(key)) {
    const pid_t child = start(program, key, store, target);
    if (child >= 0) wait_for(child);
  }
  all.give_back(digest);
}

}  // namespace

void compile_ahead(const std::vector<std::string>& sources, const Device& device,
                   const KernelStore& store, Deadline deadline) {
  const std::string program = helper();
  if (program.empty() || sources.empty() || !store.writable()) return;
  const Target& target = target_of(device.family);
  const std::string flags = target.toolchain.flags(device.architecture),
                    compiler = target.toolchain.version(flags);
  in_parallel(sources.size(), [&](std::size_t i) {
    compile_one(program, {sources[i], compiler, flags}, store, target, deadline);
  });
}

void stop_compiling_ahead() { turns().stop(); }

int compile_from_input(const std::string& folder, const std::string& key_folder,
                       const std::string& target, const std::string& flags,
                       const std::vector<std::string>& directories) {
  const std::string source{std::istreambuf_iterator<char>(std::cin),
                           std::istreambuf_iterator<char>()};
  try {
    const Toolchain& toolchain = target_called(target).toolchain;
    for (const auto& directory : directories) toolchain.add_directory(directory);
    const KernelKey key{source, toolchain.version(flags), flags};
    const KernelStore store(folder, {.key_folder = key_folder});
    store.find_or(key, [&] { return toolchain.compile(source, flags); });
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

}  // namespace ladder
