// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "base/environment.h"
#include "base/error.h"
#include "base/joined.h"
#include "base/unnamed_file.h"
#include "codegen/hip/compilers.h"
#include "codegen/hip/libraries.h"

namespace ladder::hip {
namespace {

namespace fs = std::filesystem;

/// What a program wrote to both of its outputs, and how it ended.
struct Ran {
  std::string text;
  std::string fault;  ///< empty: with status 0
};

std::string all_of(int file) {
  std::string text;
  lseek(file, 0, SEEK_SET);
  char piece[4096];
  for (ssize_t got; (got = read(file, piece, sizeof piece)) > 0;) {
    text.append(piece, static_cast<std::size_t>(got));
  }
  return text;
}

/// Runs a program to its end. Its output goes to a file without a name: a pipe could fill.
Ran run(std::vector<std::string> words) {
  const int output = unnamed_file();
  if (output < 0) return {{}, std::strerror(errno)};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, 1);
  posix_spawn_file_actions_adddup2(&files, output, 2);
  pid_t child = -1;
  const int failed =
      posix_spawn(&child, words.front().c_str(), &files, nullptr, arguments.data(), environment());
  posix_spawn_file_actions_destroy(&files);
  Ran ran;
  int status = 0;
  if (failed != 0) {
    ran.fault = std::strerror(failed);
  } else {
    pid_t ended;
    while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
    }
    // Where the process leaves its children to the system nobody knows their status: what the
    // program was to make says whether it has.
    if (ended == child && WIFSIGNALED(status)) {
      ran.fault = joined("ended by signal ", WTERMSIG(status));
    } else if (ended == child && WEXITSTATUS(status) != 0) {
      ran.fault = joined("ended with status ", WEXITSTATUS(status));
    }
  }
  ran.text = all_of(output);
  close(output);
  return ran;
}

bool can_run(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> candidates() {
  std::vector<std::string> all;
  for (const auto& directory : directories()) {
    all.push_back(directory + "/clang++");
    all.push_back(directory + "/llvm/bin/clang++");
  }
  for (const auto& root : roots()) {
    all.push_back(root + "/llvm/bin/clang++");
    all.push_back(root + "/lib/llvm/bin/clang++");
  }
  const char* const path = std::getenv("PATH");
  for (const char* name : {"amdclang++", "clang++-22", "clang++-21", "clang++-20", "clang++-19"}) {
    std::istringstream folders(path == nullptr ? "" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (!folder.empty()) all.push_back(folder + "/" + name);
    }
  }
  return all;
}

/// Nothing where it is no clang, or one without AMD's GPUs.
std::optional<Clang> described(const std::string& path) {
  Ran version = run({path, "--version"});
  version.text.resize(std::min(version.text.find('\n'), version.text.size()));
  if (!version.fault.empty() || version.text.find("clang version") == std::string::npos) {
    return std::nullopt;
  }
  Clang clang{path, version.text, {}};
  std::istringstream lines(
      run({path, "--target=amdgcn-amd-amdhsa", "-nogpulib", "--print-supported-cpus"}).text);
  for (std::string word; lines >> word;) {
    if (word.starts_with("gfx")) clang.architectures.push_back(word);
  }
  if (clang.architectures.empty()) return std::nullopt;
  return clang;
}

/// A folder that nobody else can look into, for as long as this lives.
class PrivateFolder {
 public:
  PrivateFolder() {
    std::error_code failed;
    const fs::path shared = fs::temp_directory_path(failed);
    path_ = ((failed ? fs::path("/tmp") : shared) / "ladder-hip-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) {
      fail<ToolchainError>("no folder for a compiler's files in ",
                           fs::path(path_).parent_path().string(), ": ", std::strerror(errno));
    }
  }
  ~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// `text` without each `part`.
std::string without(std::string text, const std::string& part) {
  for (std::size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
  return text;
}

}  // namespace

bool Clang::knows(std::string_view architecture) const {
  return std::ranges::find(architectures, architecture) != architectures.end();
}

std::vector<Clang> clangs() {
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, std::optional<Clang>>;
  const std::lock_guard lock(mutex);
  std::vector<Clang> all;
  for (const std::string& path : candidates()) {
    if (!can_run(path)) continue;
    auto& clang = known.contains(path) ? known[path] : known[path] = described(path);
    if (clang) all.push_back(*clang);
  }
  return all;
}

CodeObject compile_by_clang(const Clang& clang, const std::string& source,
                            const std::vector<std::string>& options) {
  const PrivateFolder folder;
  const std::string text = folder.file("kernel.hip"), made = folder.file("kernel.co");
  if (std::ofstream file(text, std::ios::binary); !(file << source).flush()) {
    fail<ToolchainError>(text, " cannot be written");
  }
  std::vector<std::string> words{clang.path};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"-c", text, "-o", made});
  const Ran ran = run(std::move(words));
  CodeObject out{contents(made), without(ran.text, folder.file(""))};
  if (!ran.fault.empty() || out.bytes.empty()) {
    fail<ToolchainError>(clang.version, " with ", options.front(), ": ",
                         ran.fault.empty() ? "made no code object" : ran.fault, "\n", out.log);
  }
  return out;
}

}  // namespace ladder::hip
