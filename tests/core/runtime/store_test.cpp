// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <chrono>
#include <thread>
#include <vector>

#include "codegen/cuda/toolchain.h"
#include "runtime/compile_ahead.h"
#include "runtime/file_lock.h"
#include "store_fixture.h"

namespace ladder {
namespace {

TEST_F(StoreTest, what_was_compiled_once_is_found_by_the_next_store) {
  EXPECT_EQ(store().find(key_), std::nullopt);
  EXPECT_EQ(ask(store()).bytes, "machine code");
  const auto again = store().find(key_);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->bytes, "machine code");
  EXPECT_EQ(again->registers, 40);
  EXPECT_EQ(again->stack_bytes, 8);
  EXPECT_EQ(rejection(*again), "(C7510) serialised");
  EXPECT_EQ(ask(store()).bytes, "machine code");
  EXPECT_EQ(compilations(), 1u);
}

TEST_F(StoreTest, another_compiler_other_flags_or_another_text_is_another_kernel) {
  ask(store());
  for (const KernelKey& other : {KernelKey{key_.source, "nvrtc 13.1", key_.flags},
                                 KernelKey{key_.source, key_.compiler, "sm_80"},
                                 KernelKey{key_.source + " ", key_.compiler, key_.flags}}) {
    EXPECT_NE(other.digest(), key_.digest());
    EXPECT_EQ(store().find(other), std::nullopt);
  }
}

TEST_F(StoreTest, a_digest_is_the_same_in_every_process) {
  EXPECT_EQ(digest_of(""), "99aa06d3014798d86001c324468d497f");  // of the specification of XXH3
  EXPECT_EQ(key_.digest().size(), 32u);
  EXPECT_GE(number_of("uint4"), 0);
}

TEST_F(StoreTest, a_torn_file_is_rebuilt_whichever_it_is) {
  std::size_t compiled = 1;
  ask(store());
  for (const char* file : {"kernel.cubin", "source.cu", "about.json"}) {
    const auto whole = contents(entry() / file);
    for (const std::string& torn : {whole.substr(0, whole.size() / 2), std::string()}) {
      put(entry() / file, torn);
      EXPECT_EQ(ask(store()).bytes, "machine code") << file;
      EXPECT_EQ(compilations(), ++compiled) << file;
    }
    fs::remove(entry() / file);
    ask(store());
    EXPECT_EQ(compilations(), ++compiled) << file;
  }
  ask(store());
  EXPECT_EQ(compilations(), compiled);
}

TEST_F(StoreTest, processes_that_want_one_kernel_compile_it_once) {
  constexpr int kProcesses = 6;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const auto binary = store().find_or(key_, [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return compiled();
      });
      _exit(binary.bytes == "machine code" ? 0 : 1);
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
    const FileLock lock(*Folder::open(entry().parent_path()), key_.digest() + ".lock",
                        std::chrono::seconds(0));
    _exit(lock.held() ? 0 : 1);  // with the lock held: it goes with the process
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ask(store()).bytes, "machine code");
  EXPECT_EQ(compilations(), 1u);
  EXPECT_FALSE(fs::exists(entry().string() + ".1.staged"));
}

TEST_F(StoreTest, a_folder_is_made_where_everybody_may_make_one) {
  chmod(folder_.c_str(), 01777);
  EXPECT_TRUE(store().writable());
  ask(store());
  ask(store());
  EXPECT_EQ(compilations(), 1u);
}

TEST_F(StoreTest, a_folder_that_cannot_be_made_costs_the_store_and_not_the_kernel) {
  std::ofstream(folder_ / "file") << "not a folder";
  const KernelStore there((folder_ / "file" / "store").string(), {.key_folder = cache()});
  EXPECT_EQ(there.objection(), "cannot be made in " + (folder_ / "file").string());
  EXPECT_EQ(ask(there).bytes, "machine code");
  EXPECT_EQ(ask(there).bytes, "machine code");
  EXPECT_EQ(compilations(), 2u);
}

TEST_F(StoreTest, kernels_compiled_ahead_are_all_there_but_what_does_not_compile) {
  if (cuda::compiler_version().empty()) GTEST_SKIP() << "no libnvrtc on this machine";
  const std::vector<std::string> sources{"extern \"C\" __global__ void a() {}",
                                         "extern \"C\" __global__ void b() {}", "not a kernel"};
  compile_ahead(sources, device("h200"), store());
  for (const std::string& source : sources) {
    const auto found = store().find({source, cuda::compiler_version(), "sm_90a"});
    ASSERT_EQ(found.has_value(), source != sources.back()) << source;
    if (found) {
      EXPECT_EQ(found->bytes.substr(1, 3), "ELF");
    }
  }
}

TEST_F(StoreTest, plans_are_kept_side_by_side) {
  EXPECT_EQ(store().plan("a on h200"), std::nullopt);
  store().keep_plan("a on h200", "tokens 8");
  store().keep_plan("b on h200", "tokens 16");
  store().keep_plan("a on h200", "tokens 24");
  EXPECT_EQ(store().plan("a on h200"), "tokens 24");
  EXPECT_EQ(store().plan("b on h200"), "tokens 16");
}

TEST_F(StoreTest, a_plan_says_of_how_many_schedules_it_is_the_fastest) {
  store().keep_plan("a", {"tokens 8", 3});
  store().keep_plan("b", {"tokens 16", 8});
  EXPECT_EQ(store().measured_plan("a")->measured, 3);
  EXPECT_EQ(store().measured_plan("b")->measured, 8);
  store().keep_plan("a", "tokens 24");
  EXPECT_EQ(store().measured_plan("a")->schedule, "tokens 24");
  EXPECT_EQ(store().measured_plan("a")->measured, 0);
}

// A hub's cache has links to files named by their contents.
TEST_F(StoreTest, plans_behind_a_link_are_those_of_the_file_that_it_names_now) {
  const fs::path link = fs::path(place()) / "plans.json";
  fs::create_directory(place());
  for (const char* name : {"one", "two"}) {
    put(folder_ / name, std::string("{\"format\": 1, \"plans\": {\"a\": \"") + name + "\"}}");
    fs::remove(link);
    fs::create_symlink(folder_ / name, link);
    EXPECT_EQ(store().plan("a"), name);
    EXPECT_EQ(store().plan("a"), name);
  }
  // A plan for another machine is added here, and not to the hub's file.
  const std::string before = contents(folder_ / "two");
  store().keep_plan("b", "tokens 8");
  EXPECT_EQ(store().plan("a"), "two");
  EXPECT_EQ(store().plan("b"), "tokens 8");
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_FALSE(fs::exists(place() + "/plans.json.unreadable"));
  EXPECT_EQ(contents(folder_ / "two"), before);
}

TEST_F(StoreTest, plans_that_are_no_plans_are_as_good_as_none) {
  store().keep_plan("a", "tokens 8");
  for (const char* text : {"", "{", "[]", "{\"format\": 2, \"plans\": {\"a\": \"x\"}}",
                           "{\"format\": 1, \"plans\": {\"a\": 3}}",
                           "{\"format\": 1, \"plans\": []}", "{\"format\": \"1\"}"}) {
    std::ofstream(fs::path(place()) / "plans.json", std::ios::trunc) << text;
    EXPECT_EQ(store().plan("a"), std::nullopt) << text;
    store().keep_plan("a", "tokens 8");
    EXPECT_EQ(store().plan("a"), "tokens 8") << text;
  }
}

TEST_F(StoreTest, plans_of_another_ladder_are_set_aside_and_not_lost) {
  store().keep_plan("a", "tokens 8");
  const std::string newer = "{\"format\": 2, \"plans\": {\"b\": \"x\"}}";
  put(fs::path(place()) / "plans.json", newer);
  store().keep_plan("a", "tokens 8");
  EXPECT_EQ(contents(fs::path(place()) / "plans.json.unreadable"), newer);
}

TEST_F(StoreTest, plans_that_cannot_be_read_now_are_not_replaced) {
  store().keep_plan("a", "tokens 8");
  const int status = in_child([&] {
    const KernelStore kept = store();
    // Descriptors for the folder, the lock and the staged file, but none for reading: as in a
    // process with too many open files.
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    for (limit.rlim_cur = 3; limit.rlim_cur < 40; ++limit.rlim_cur) {
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
      kept.keep_plan("b", "tokens 16");
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(store().plan("a"), "tokens 8");
  EXPECT_EQ(store().plan("b"), "tokens 16");
  EXPECT_FALSE(fs::exists(fs::path(place()) / "plans.json.unreadable"));
}

TEST_F(StoreTest, a_log_that_is_not_utf8_is_kept_and_found) {
  const auto quoting = [&] { return MachineCode{"machine code", 40, 8, 0, "", "(C7510) \xff"}; };
  store().find_or(key_, quoting);
  ASSERT_TRUE(store().find(key_).has_value());
  EXPECT_EQ(store().find(key_)->warning, "(C7510) \xef\xbf\xbd");
}

TEST_F(StoreTest, threads_keep_all_plans) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] { store().keep_plan(std::to_string(i), "plan"); });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(store().plan(std::to_string(i)), "plan");
}

TEST_F(StoreTest, the_cache_is_where_the_user_says) {
  EXPECT_EQ(in_child([] {
              setenv("LADDER_CACHE", "/somewhere/else", 1);
              if (user_cache_folder() != "/somewhere/else") return 1;
              unsetenv("LADDER_CACHE");
              setenv("XDG_CACHE_HOME", "/caches", 1);
              if (user_cache_folder() != "/caches/ladder") return 2;
              unsetenv("XDG_CACHE_HOME");
              setenv("HOME", "/nobody", 1);
              return user_cache_folder() == "/nobody/.cache/ladder" ? 0 : 3;
            }),
            0);
}

TEST_F(StoreTest, the_cache_may_be_behind_a_link_of_the_user_and_not_of_others) {
  fs::create_directory(folder_ / "disk");
  fs::create_symlink(folder_ / "disk", folder_ / "link");
  fs::create_symlink(folder_ / "disk", folder_ / ("ladder-" + std::to_string(geteuid())));
  EXPECT_EQ(in_child([&] {
              setenv("LADDER_CACHE", (folder_ / "link").c_str(), 1);
              if (!KernelStore(user_cache_folder()).writable()) return 1;
              // Nowhere but where everybody can put a link.
              for (const char* name : {"LADDER_CACHE", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
              setenv("TMPDIR", folder_.c_str(), 1);
              return KernelStore(user_cache_folder()).writable() ? 2 : 0;
            }),
            0);
}

}  // namespace
}  // namespace ladder
