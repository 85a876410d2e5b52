// SPDX-License-Identifier: Apache-2.0
#include "runtime/user_key.h"

#include <vector>

#include "store_fixture.h"

namespace ladder {
namespace {

class Key : public StoreTest {
 protected:
  std::optional<std::string> key() const { return user_key(cache(), geteuid()); }
  fs::path file() const { return fs::path(cache()) / "key"; }
};

TEST_F(Key, is_made_once_and_for_this_user_alone) {
  const auto first = key();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->size(), 64u);
  EXPECT_EQ(key(), first);
  struct stat info {};
  ASSERT_EQ(stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  ASSERT_EQ(stat(cache().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  fs::remove_all(cache());
  EXPECT_NE(key(), first);
}

TEST_F(Key, is_one_key_however_many_processes_make_it) {
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(fork());
    if (children.back() == 0) {
      const auto made = key();
      put(folder_ / ("key" + std::to_string(i)), made.value_or("none"));
      _exit(0);
    }
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(contents(folder_ / ("key" + std::to_string(i))), key().value());
  }
}

// What came with a download, or others could read, is no secret.
TEST_F(Key, that_others_know_is_replaced) {
  const auto first = key();
  const auto replaced = [&](const char* what) {
    const auto now = key();
    EXPECT_TRUE(now.has_value()) << what;
    EXPECT_NE(now, first) << what;
    EXPECT_EQ(key(), now) << what;
    fs::remove(file());
    put(file(), *first);
    chmod(file().c_str(), 0600);
    EXPECT_EQ(key(), first) << what;
  };
  for (const mode_t mode : {0644, 0640, 0604, 0620, 0610}) {
    chmod(file().c_str(), mode);
    replaced("mode");
  }
  fs::rename(file(), folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", file());
  replaced("link");
  EXPECT_EQ(contents(folder_ / "elsewhere"), *first);
  fs::create_hard_link(file(), folder_ / "second name");
  replaced("second name");
  put(file(), first->substr(1));
  replaced("torn");
  put(file(), *first + "0");
  replaced("longer");
  fs::remove(file());
  mkfifo(file().c_str(), 0600);
  replaced("pipe");
  fs::remove(file());
  fs::create_directories(file() / "deep");
  replaced("folder");
}

TEST_F(Key, is_neither_made_nor_read_where_others_can_write) {
  key();
  for (const mode_t mode : {0777, 0770, 0702}) {
    chmod(cache().c_str(), mode);
    EXPECT_EQ(key(), std::nullopt) << std::oct << mode;
    EXPECT_EQ(ask(store()).bytes, "machine code");
    EXPECT_FALSE(fs::exists(entry())) << "nobody would load it";
  }
  EXPECT_EQ(user_key(cache(), static_cast<long>(geteuid()) + 1), std::nullopt);
}

}  // namespace
}  // namespace ladder
