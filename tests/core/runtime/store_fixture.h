// SPDX-License-Identifier: Apache-2.0
// A store in a folder of its own, with a key of its own, whose compiler counts.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "runtime/kernel_store.h"

namespace ladder {

namespace fs = std::filesystem;

inline std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// The exit status of `body` in a child process; 255 where it throws, -1 where a signal ends it.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 255;
    try {
      status = body();
    } catch (...) {
    }
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ladder-store-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }

  /// Counts compilations in a file, so that other processes count too.
  MachineCode compiled() const {
    std::ofstream(folder_ / "compilations", std::ios::app) << 'x';
    return {"machine code", 40, 8, 0, "log", "(C7510) serialised"};
  }
  std::size_t compilations() const { return contents(folder_ / "compilations").size(); }
  MachineCode ask(const KernelStore& store) const { return ask(store, key_); }
  MachineCode ask(const KernelStore& store, const KernelKey& key) const {
    return store.find_or(key, [&] { return compiled(); });
  }
  KernelStore store(KernelStore::Options options = {}) const {
    if (options.key_folder.empty()) options.key_folder = cache();
    return KernelStore(place(), options);
  }
  /// A store at the same place, of a user who has another key.
  KernelStore stranger() const { return store({.key_folder = (folder_ / "stranger").string()}); }

  fs::path entry() const { return entry(key_); }
  fs::path entry(const KernelKey& key) const {
    return folder_ / "store" / "kernels" / key.digest();
  }
  std::string place() const { return (folder_ / "store").string(); }
  std::string cache() const { return (folder_ / "cache").string(); }
  KernelKey numbered(int i) const {
    return {key_.source + "// " + std::to_string(i), key_.compiler, key_.flags};
  }

  fs::path folder_;
  const KernelKey key_{"__global__ void f() {}", "nvrtc 13.0", "sm_90a"};
};

}  // namespace ladder
