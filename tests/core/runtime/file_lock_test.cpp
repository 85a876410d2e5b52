// SPDX-License-Identifier: Apache-2.0
#include "runtime/file_lock.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "store_fixture.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;
using State = FileLock::State;

class Lock : public StoreTest {
 protected:
  Folder folder() const { return std::move(*Folder::open(folder_)); }
  State state(std::chrono::milliseconds patience = 0ms) const {
    return FileLock(folder(), "lock", patience).state();
  }
};

TEST_F(Lock, has_one_holder_also_within_a_process) {
  auto first = std::make_unique<FileLock>(folder(), "lock", 0ms);
  EXPECT_TRUE(first->held());
  EXPECT_EQ(state(), State::busy);
  first.reset();
  EXPECT_EQ(state(), State::held);
}

TEST_F(Lock, is_waited_for_and_not_for_ever) {
  auto first = std::make_unique<FileLock>(folder(), "lock", 0ms);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(state(30ms), State::busy);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 30ms);
  std::thread release([&] {
    std::this_thread::sleep_for(30ms);
    first.reset();
  });
  EXPECT_EQ(state(20s), State::held);
  release.join();
}

// A worker of a DataLoader is forked whenever it likes and lives as long as the training.
TEST_F(Lock, is_given_up_though_a_child_has_inherited_it) {
  auto first = std::make_unique<FileLock>(folder(), "lock", 0ms);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  first.reset();
  EXPECT_EQ(state(), State::held);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(Lock, is_not_given_up_by_a_child) {
  auto first = std::make_unique<FileLock>(folder(), "lock", 0ms);
  EXPECT_EQ(in_child([&] {
              first.reset();
              return 0;
            }),
            0);
  EXPECT_EQ(state(), State::busy);
}

TEST_F(Lock, is_not_inherited_by_another_program) {
  const FileLock lock(folder(), "lock", 0ms);
  const std::string list = "ls -l /proc/self/fd | grep -c '" + (folder_ / "lock").string() + "'";
  EXPECT_NE(std::system((list + " > /dev/null").c_str()), 0);
}

// clean() removes locks: who opened one before and gets it after holds what has no name any more,
// beside the holder of the next.
TEST_F(Lock, that_its_holders_remove_has_one_holder) {
  std::atomic<int> holders = 0, most = 0, held = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const Folder there = folder();
      for (int turn = 0; turn < 3000; ++turn) {
        const FileLock lock(there, "lock", 0ms);
        if (!lock.held()) continue;
        ++held;
        const int now = ++holders;
        if (now > most) most = now;
        if (turn % 8 == 0) std::this_thread::yield();
        --holders;
        there.remove("lock");  // the last that a holder does
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(held, 100);
  EXPECT_EQ(most, 1);
}

TEST_F(Lock, is_none_where_the_name_is_something_else) {
  fs::create_symlink(folder_ / "away", folder_ / "lock");
  EXPECT_EQ(state(), State::none);
  EXPECT_FALSE(fs::exists(folder_ / "away"));
  fs::remove(folder_ / "lock");
  fs::create_directory(folder_ / "lock");
  EXPECT_EQ(state(), State::none);
}

}  // namespace
}  // namespace ladder
