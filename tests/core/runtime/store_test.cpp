// SPDX-License-Identifier: Apache-2.0
#include "runtime/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/compile_ahead.h"
#include "runtime/files.h"

namespace ladder {
namespace {

namespace fs = std::filesystem;

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
  cuda::Binary compiled() const {
    std::ofstream(folder_ / "compilations", std::ios::app) << 'x';
    return {"machine code", 40, 8, 0, "log", "(C7510) serialised"};
  }
  std::size_t compilations() const {
    return read_file(folder_ / "compilations").value_or("").size();
  }
  cuda::Binary ask(const Store& store) const {
    return store.find_or(key_, [&] { return compiled(); });
  }
  fs::path entry() const { return folder_ / "store" / "kernels" / key_.digest(); }
  std::string place() const { return (folder_ / "store").string(); }

  fs::path folder_;
  const KernelKey key_{"__global__ void f() {}", "nvrtc 13.0", "sm_90a"};
};

TEST_F(StoreTest, what_was_compiled_once_is_found_by_the_next_store) {
  EXPECT_EQ(Store(place()).find(key_), std::nullopt);
  EXPECT_EQ(ask(Store(place())).cubin, "machine code");
  const auto again = Store(place()).find(key_);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->cubin, "machine code");
  EXPECT_EQ(again->registers, 40);
  EXPECT_EQ(again->stack_bytes, 8);
  EXPECT_EQ(cuda::objection(*again), "(C7510) serialised");
  EXPECT_EQ(ask(Store(place())).cubin, "machine code");
  EXPECT_EQ(compilations(), 1u);
}

TEST_F(StoreTest, another_compiler_other_flags_or_another_text_is_another_kernel) {
  ask(Store(place()));
  for (const KernelKey& other : {KernelKey{key_.source, "nvrtc 13.1", key_.flags},
                                 KernelKey{key_.source, key_.compiler, "sm_80"},
                                 KernelKey{key_.source + " ", key_.compiler, key_.flags}}) {
    EXPECT_NE(other.digest(), key_.digest());
    EXPECT_EQ(Store(place()).find(other), std::nullopt);
  }
}

TEST_F(StoreTest, a_digest_is_the_same_in_every_process) {
  EXPECT_EQ(digest_of(""), "99aa06d3014798d86001c324468d497f");  // of the specification of XXH3
  EXPECT_EQ(key_.digest().size(), 32u);
  EXPECT_GE(number_of("uint4"), 0);
}

TEST_F(StoreTest, a_torn_file_is_rebuilt_whichever_it_is) {
  std::size_t compiled = 1;
  ask(Store(place()));
  for (const char* file : {"kernel.cubin", "source.cu", "about.json"}) {
    const auto whole = read_file(entry() / file).value();
    for (const std::string& torn : {whole.substr(0, whole.size() / 2), std::string()}) {
      std::ofstream(entry() / file, std::ios::trunc) << torn;
      EXPECT_EQ(ask(Store(place())).cubin, "machine code") << file;
      EXPECT_EQ(compilations(), ++compiled) << file;
    }
    fs::remove(entry() / file);
    ask(Store(place()));
    EXPECT_EQ(compilations(), ++compiled) << file;
  }
  ask(Store(place()));
  EXPECT_EQ(compilations(), compiled);
}

TEST_F(StoreTest, an_altered_binary_is_not_loaded) {
  ask(Store(place()));
  std::ofstream(entry() / "kernel.cubin", std::ios::trunc) << "machine codf";
  EXPECT_EQ(Store(place()).find(key_), std::nullopt);
}

TEST_F(StoreTest, processes_that_want_one_kernel_compile_it_once) {
  constexpr int kProcesses = 6;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const auto binary = Store(place()).find_or(key_, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return compiled();
      });
      _exit(binary.cubin == "machine code" ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(compilations(), 1u);
}

TEST_F(StoreTest, a_process_that_dies_while_it_writes_leaves_nothing_that_is_read) {
  const pid_t child = fork();
  if (child == 0) {
    fs::create_directories(entry().string() + ".1.staged");
    std::ofstream(entry().string() + ".1.staged/kernel.cubin") << "mach";
    const FileLock lock(entry().string() + ".lock");
    _exit(0);  // with the lock held: it goes with the process
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(ask(Store(place())).cubin, "machine code");
  EXPECT_EQ(compilations(), 1u);
  EXPECT_FALSE(fs::exists(entry().string() + ".1.staged"));
}

TEST_F(StoreTest, a_kernel_of_another_user_is_neither_loaded_nor_replaced_unless_trusted) {
  ask(Store(place()));
  const long stranger = static_cast<long>(geteuid()) + 1;
  const Store foreign(place(), {.user = stranger});
  EXPECT_FALSE(foreign.writable());
  EXPECT_EQ(foreign.find(key_), std::nullopt);
  EXPECT_EQ(ask(foreign).cubin, "machine code");
  EXPECT_EQ(compilations(), 2u);
  EXPECT_TRUE(Store(place(), {.trust_kernels = true, .user = stranger}).find(key_).has_value());
}

TEST_F(StoreTest, a_folder_that_anybody_may_write_is_not_trusted) {
  ask(Store(place()));
  chmod(place().c_str(), 0777);
  EXPECT_FALSE(Store(place()).writable());
  EXPECT_EQ(Store(place()).find(key_), std::nullopt);
}

TEST_F(StoreTest, a_folder_is_made_where_everybody_may_make_one) {
  chmod(folder_.c_str(), 01777);
  EXPECT_TRUE(Store(place()).writable());
  ask(Store(place()));
  ask(Store(place()));
  EXPECT_EQ(compilations(), 1u);
}

TEST_F(StoreTest, a_folder_that_cannot_be_made_costs_the_store_and_not_the_kernel) {
  std::ofstream(folder_ / "file") << "not a folder";
  const Store store((folder_ / "file" / "store").string());
  EXPECT_EQ(ask(store).cubin, "machine code");
  EXPECT_EQ(ask(store).cubin, "machine code");
  EXPECT_EQ(compilations(), 2u);
}

TEST_F(StoreTest, kernels_compiled_ahead_are_all_there_or_left_to_the_caller) {
  const std::vector<std::string> sources{"extern \"C\" __global__ void a() {}",
                                         "extern \"C\" __global__ void b() {}", "not a kernel"};
  compile_ahead(sources, device("h200"), Store(place()));
  const bool can = !cuda::compiler_version().empty();
  for (const std::string& source : sources) {
    const bool there =
        Store(place()).find({source, cuda::compiler_version(), "sm_90a"}).has_value();
    EXPECT_TRUE(!there || (can && source != sources.back())) << source;
  }
}

TEST_F(StoreTest, plans_are_kept_side_by_side) {
  const Store store(place());
  EXPECT_EQ(store.plan("a on h200"), std::nullopt);
  store.keep_plan("a on h200", "tokens 8");
  store.keep_plan("b on h200", "tokens 16");
  store.keep_plan("a on h200", "tokens 24");
  EXPECT_EQ(Store(place()).plan("a on h200"), "tokens 24");
  EXPECT_EQ(Store(place()).plan("b on h200"), "tokens 16");
}

TEST_F(StoreTest, plans_that_are_no_plans_are_as_good_as_none) {
  const Store store(place());
  store.keep_plan("a", "tokens 8");
  for (const char* text : {"", "{", "[]", "{\"format\": 2, \"plans\": {\"a\": \"x\"}}",
                           "{\"format\": 1, \"plans\": {\"a\": 3}}",
                           "{\"format\": 1, \"plans\": []}", "{\"format\": \"1\"}"}) {
    std::ofstream(fs::path(place()) / "plans.json", std::ios::trunc) << text;
    EXPECT_EQ(store.plan("a"), std::nullopt) << text;
    store.keep_plan("a", "tokens 8");
    EXPECT_EQ(store.plan("a"), "tokens 8") << text;
  }
}

TEST_F(StoreTest, threads_and_processes_keep_all_plans) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] { Store(place()).keep_plan(std::to_string(i), "plan"); });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Store(place()).plan(std::to_string(i)), "plan");
}

TEST_F(StoreTest, the_cache_is_where_the_user_says) {
  const char* before = std::getenv("LADDER_CACHE");
  const std::string kept = before == nullptr ? "" : before;
  setenv("LADDER_CACHE", "/somewhere/else", 1);
  EXPECT_EQ(user_cache_folder(), "/somewhere/else");
  unsetenv("LADDER_CACHE");
  EXPECT_THAT(user_cache_folder(), testing::HasSubstr("ladder"));
  if (before != nullptr) setenv("LADDER_CACHE", kept.c_str(), 1);
}

}  // namespace
}  // namespace ladder
