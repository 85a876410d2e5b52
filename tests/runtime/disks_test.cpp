// SPDX-License-Identifier: Apache-2.0
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "robustness.h"

namespace ladder {
namespace {

/// What a process does with a disk that has no room for all of it.
int work_on(const KernelStore& store, const std::string& before) {
  for (int i = 0; i < 3; ++i) {
    const KernelKey key{"kernel " + std::to_string(i) + std::string(9000, 'x'), "nvrtc 13.0",
                        "sm_90a"};
    const auto compile = [&] { return gpus().toolchain.compile(key.source, key.flags); };
    if (store.find_or(key, compile).bytes != key.flags + "\n" + key.source) return 1;
    store.keep_plan("new " + std::to_string(i), std::string(500, 'p'));
    if (store.plan("before") != before) return 2;
  }
  return 0;
}

TEST_F(Robustness, a_file_that_cannot_be_written_whole_costs_what_was_to_be_kept) {
  // Every size at which one of the files stops.
  for (const rlim_t bytes : {0, 1, 63, 64, 100, 400, 1000, 2000, 8000, 9006, 9007, 9014, 12000}) {
    fs::remove_all(cache());
    const KernelStore there(cache());
    there.keep_plan("before", "plan");
    EXPECT_EQ(in_child([&] {
                signal(SIGXFSZ, SIG_IGN);  // as Python does
                const rlimit limit{bytes, RLIM_INFINITY};
                if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 3;
                return work_on(there, "plan");
              }),
              0)
        << bytes;
    EXPECT_EQ(there.plan("before"), "plan");
    whole_entries();
    for (const auto& left : fs::recursive_directory_iterator(cache())) {
      EXPECT_FALSE(left.path().string().ends_with(".staged")) << left.path() << bytes;
    }
    EXPECT_EQ(work_on(there, "plan"), 0);
    EXPECT_EQ(whole_entries(), 3u);
  }
}

TEST_F(Robustness, a_full_disk_costs_what_was_to_be_kept) {
  constexpr int kCannotMount = 77;
  int status = 0;
  for (const int pages : {2, 3, 4, 5, 6, 8, 11, 16}) {
    status = in_child([&] {
      const std::string size = "size=" + std::to_string(4096 * pages);
      const bool alone = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
      mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
      fs::create_directories(cache());
      if (!alone || mount("tmpfs", cache().c_str(), "tmpfs", 0, size.c_str()) != 0) {
        return kCannotMount;
      }
      chmod(cache().c_str(), 0700);
      const KernelStore there(cache());
      there.keep_plan("before", "plan");
      const int wrong = work_on(there, there.plan("before").value_or(""));
      whole_entries();
      return wrong != 0 ? wrong : HasFailure() ? 4 : 0;
    });
    if (status == kCannotMount) GTEST_SKIP() << "this user can mount no tmpfs";
    EXPECT_EQ(status, 0) << pages;
  }
}

TEST_F(Robustness, a_read_only_folder_is_read_and_costs_what_was_to_be_kept) {
  const KernelStore there(cache());
  const KernelKey key = numbered(1);
  // Root can write everything: another user then.
  const uid_t user = geteuid() == 0 ? 65534 : geteuid();
  const auto as_user = [&](const auto& body) {
    return in_child([&] {
      if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setuid(user) != 0)) return 9;
      return body(KernelStore(cache()));
    });
  };
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder_.c_str(), user, static_cast<gid_t>(-1)), 0);
  }
  ASSERT_EQ(as_user([&](const KernelStore& mine) {
              mine.keep_plan("before", "plan");
              return mine.find_or(key, [&] { return compile(key); }).bytes == code_of(key) ? 0 : 1;
            }),
            0);
  chmod((fs::path(cache()) / "kernels").c_str(), 0500);
  chmod(cache().c_str(), 0500);
  EXPECT_EQ(as_user([&](const KernelStore& mine) {
              if (mine.objection() != "is read-only") return 1;
              if (!mine.find(key)) return 2;  // the key is there
              mine.keep_plan("after", "plan");
              if (mine.plan("before") != "plan" || mine.plan("after")) return 3;
              const KernelKey other = numbered(2);
              if (mine.find_or(other, [&] { return compile(other); }).bytes != code_of(other)) {
                return 4;
              }
              return mine.find(other) ? 5 : 0;
            }),
            0);
  chmod(cache().c_str(), 0700);
  chmod((fs::path(cache()) / "kernels").c_str(), 0700);
}

}  // namespace
}  // namespace ladder
