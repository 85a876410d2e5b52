// SPDX-License-Identifier: Apache-2.0
#include "runtime/compile_ahead.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <thread>

#include "codegen/cuda/toolchain.h"

extern char** environ;

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

/// `text` as a file without a name, at its beginning; -1 when there is no room for it. No pipe: it
/// could fill while the helper waits for a lock. Nor a file in a folder: what is killed leaves it.
int unnamed_file(std::string_view text) {
  const int file = memfd_create("ladder", MFD_CLOEXEC);
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
pid_t start(const std::string& program, const std::string& source, const KernelStore& store,
            const std::string& target) {
  const int input = unnamed_file(source);
  if (input < 0) return -1;
  std::vector<std::string> words{program, store.folder(), store.key_folder(), target};
  for (const auto& directory : cuda::nvrtc_directories()) words.push_back(directory);
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
  if (posix_spawn(&child, program.c_str(), &files, nullptr, arguments.data(), environ) != 0) {
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

}  // namespace

void compile_ahead(const std::vector<std::string>& sources, const Device& device,
                   const KernelStore& store) {
  const std::string program = helper();
  if (program.empty() || sources.size() < 2 || !store.writable()) return;
  const std::string target = cuda::target_for(device.architecture);
  const std::size_t most = std::max(1u, std::thread::hardware_concurrency());
  std::vector<pid_t> running;
  for (const std::string& source : sources) {
    if (running.size() == most) {
      wait_for(running.front());
      running.erase(running.begin());
    }
    const pid_t child = start(program, source, store, target);
    if (child >= 0) running.push_back(child);
  }
  for (const pid_t child : running) wait_for(child);
}

int compile_from_input(const std::string& folder, const std::string& key_folder,
                       const std::string& target,
                       const std::vector<std::string>& nvrtc_directories) {
  const std::string source{std::istreambuf_iterator<char>(std::cin),
                           std::istreambuf_iterator<char>()};
  for (const auto& directory : nvrtc_directories) cuda::add_nvrtc_directory(directory);
  try {
    const KernelKey key{source, cuda::compiler_version(), target};
    const KernelStore store(folder, {.key_folder = key_folder});
    store.find_or(key, [&] { return cuda::compile(source, target); });
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

}  // namespace ladder
