// SPDX-License-Identifier: Apache-2.0
#include "runtime/compile_ahead.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
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
#include "runtime/files.h"

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

/// Starts the helper with `source` as its input; -1 when that fails.
pid_t start(const std::string& program, const fs::path& source, const std::string& folder,
            const std::string& architecture) {
  std::vector<std::string> words{program, folder, architecture};
  for (const auto& directory : cuda::nvrtc_directories()) words.push_back(directory);
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, source.c_str(), O_RDONLY, 0);
  for (int output : {1, 2}) {
    posix_spawn_file_actions_addopen(&files, output, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = -1;
  if (posix_spawn(&child, program.c_str(), &files, nullptr, arguments.data(), environ) != 0) {
    child = -1;
  }
  posix_spawn_file_actions_destroy(&files);
  return child;
}

void wait_for(pid_t child) {
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

void compile_ahead(const std::vector<std::string>& sources, const Device& device,
                   const Store& store) {
  const std::string program = helper(), architecture(device.architecture);
  if (program.empty() || sources.size() < 2 || !store.writable()) return;
  // A folder of our own: a pipe could fill while the helper waits for a lock.
  std::string folder = (fs::temp_directory_path() / "ladder-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return;
  const std::size_t most = std::max(1u, std::thread::hardware_concurrency());
  std::vector<pid_t> running;
  try {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (running.size() == most) {
        wait_for(running.front());
        running.erase(running.begin());
      }
      const fs::path input = fs::path(folder) / std::to_string(i);
      write_synced(input, sources[i]);
      const pid_t child = start(program, input, store.folder(), architecture);
      if (child >= 0) running.push_back(child);
    }
  } catch (const fs::filesystem_error&) {
    // A full disk: whoever asks for the kernels compiles them.
  }
  for (const pid_t child : running) wait_for(child);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

int compile_from_input(const std::string& folder, const std::string& architecture,
                       const std::vector<std::string>& nvrtc_directories) {
  const std::string source{std::istreambuf_iterator<char>(std::cin),
                           std::istreambuf_iterator<char>()};
  for (const auto& directory : nvrtc_directories) cuda::add_nvrtc_directory(directory);
  try {
    const KernelKey key{source, cuda::compiler_version(), architecture};
    Store(folder).find_or(key, [&] { return cuda::compile(source, architecture); });
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

}  // namespace ladder
