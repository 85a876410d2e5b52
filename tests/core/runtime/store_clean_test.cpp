// SPDX-License-Identifier: Apache-2.0
#include <sys/time.h>

#include <chrono>
#include <utility>

#include "runtime/file_lock.h"
#include "store_fixture.h"

namespace ladder {
namespace {

using namespace std::chrono_literals;

class Clean : public StoreTest {
 protected:
  /// Keeps kernels of `bytes` each that were last used 1, 2, ... `count` hours ago.
  void fill(int count, std::size_t bytes) const {
    for (int i = 0; i < count; ++i) {
      store().find_or(numbered(i),
                      [&] { return MachineCode{std::string(bytes, 'x'), 40, 0, 0, "", ""}; });
      set_used(numbered(i), (i + 1) * 3600);
    }
  }
  void set_used(const KernelKey& key, long seconds_ago) const {
    const timeval then{time(nullptr) - seconds_ago, 0};
    const timeval times[2] = {then, then};
    ASSERT_EQ(utimes(entry(key).c_str(), times), 0);
  }
  bool has(int i) const { return fs::exists(entry(numbered(i))); }
  /// Of all files in the store's folder of kernels.
  std::int64_t bytes() const {
    std::int64_t all = 0;
    for (const auto& each : fs::recursive_directory_iterator(fs::path(place()) / "kernels")) {
      if (each.is_regular_file()) all += static_cast<std::int64_t>(each.file_size());
    }
    return all;
  }
};

TEST_F(Clean, what_was_not_used_for_the_longest_time_goes_first) {
  fill(10, 100000);
  store().find(numbered(9));  // used now, though it was kept the longest time ago
  const std::int64_t before = bytes();
  const auto done = store().clean({.capacity_bytes = 500000});
  EXPECT_LE(bytes(), 500000);
  EXPECT_EQ(done.removed_bytes, before - bytes());
  EXPECT_EQ(done.kept_bytes, bytes());
  EXPECT_EQ(done.removed_kernels + done.kept_kernels, 10);
  EXPECT_TRUE(has(9));
  for (int i = 0; i < 9; ++i) EXPECT_EQ(has(i), i < done.kept_kernels - 1) << i;
}

TEST_F(Clean, nothing_goes_below_the_limit) {
  fill(4, 1000);
  const auto done = store().clean({.capacity_bytes = 1000000});
  EXPECT_EQ(done.removed_bytes, 0);
  EXPECT_EQ(done.kept_kernels, 4);
}

TEST_F(Clean, what_was_used_just_now_stays_above_the_limit) {
  fill(2, 100000);
  set_used(numbered(0), 10);
  store().clean({.capacity_bytes = 1});
  EXPECT_TRUE(has(0));
  EXPECT_FALSE(has(1));
}

TEST_F(Clean, what_somebody_holds_the_lock_of_stays) {
  fill(2, 1000);
  const Folder kernels = std::move(*Folder::open(fs::path(place()) / "kernels"));
  {
    const FileLock lock(kernels, numbered(0).digest() + ".lock", 0ms);
    ASSERT_TRUE(lock.held());
    EXPECT_EQ(store().clean({.unused_seconds = 0}).removed_kernels, 1);
    EXPECT_TRUE(has(0));
  }
  EXPECT_EQ(store().clean({.unused_seconds = 0}).removed_kernels, 1);
  EXPECT_FALSE(has(0));
}

TEST_F(Clean, what_was_not_used_for_days_goes) {
  fill(3, 1000);
  set_used(numbered(1), 8 * 86400);
  const auto done = store().clean({.unused_seconds = 7 * 86400});
  EXPECT_EQ(done.removed_kernels, 1);
  EXPECT_FALSE(has(1));
  EXPECT_TRUE(has(0) && has(2));
}

TEST_F(Clean, all_leaves_no_file_but_the_key) {
  fill(3, 1000);
  store().keep_plan("a", "tokens 8");
  const auto before = bytes() + static_cast<std::int64_t>(fs::file_size(place() + "/plans.json"));
  const auto done = store().clean({.unused_seconds = 0, .plans = true});
  EXPECT_EQ(done.removed_bytes, before);
  EXPECT_EQ(done.kept_kernels, 0);
  EXPECT_TRUE(fs::is_empty(fs::path(place()) / "kernels"));
  EXPECT_EQ(store().plan("a"), std::nullopt);
  EXPECT_TRUE(fs::exists(fs::path(cache()) / "key"));
}

TEST_F(Clean, what_dead_processes_left_goes_and_what_is_being_written_stays) {
  fill(1, 1000);
  const fs::path dead = entry(numbered(0)).string() + ".00.staged";
  const fs::path alive = entry(numbered(1)).string() + ".00.staged";
  for (const auto& staged : {dead, alive}) {
    fs::create_directory(staged);
    put(staged / "kernel.cubin", "mach");
  }
  const Folder kernels = std::move(*Folder::open(fs::path(place()) / "kernels"));
  const FileLock lock(kernels, numbered(1).digest() + ".lock", 0ms);
  EXPECT_EQ(store().clean({}).removed_bytes, 4);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(has(0));
}

TEST_F(Clean, a_store_of_a_limited_size_keeps_it) {
  const auto limited = store({.capacity_bytes = 300000, .looks_seconds = 0});
  for (int i = 0; i < 20; ++i) {
    limited.find_or(numbered(i),
                    [&] { return MachineCode{std::string(50000, 'x'), 40, 0, 0, "", ""}; });
    EXPECT_TRUE(has(i));  // what is kept now is not what goes
    set_used(numbered(i), 3600 + 20 - i);
  }
  EXPECT_LE(bytes(), 350000);
  EXPECT_GE(bytes(), 200000);
}

TEST_F(Clean, the_size_is_looked_at_now_and_then) {
  const auto limited = store({.capacity_bytes = 1, .looks_seconds = 3600});
  limited.find_or(numbered(0), [&] { return MachineCode{"x", 40, 0, 0, "", ""}; });  // looks
  set_used(numbered(0), 3600);
  limited.find_or(numbered(1), [&] { return MachineCode{"x", 40, 0, 0, "", ""}; });
  EXPECT_TRUE(has(0));
}

TEST_F(Clean, a_folder_that_others_may_write_is_left_alone) {
  fill(1, 1000);
  chmod(place().c_str(), 0777);
  EXPECT_EQ(store().clean({.unused_seconds = 0}).removed_kernels, 0);
  EXPECT_TRUE(has(0));
}

}  // namespace
}  // namespace ladder
