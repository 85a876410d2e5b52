// SPDX-License-Identifier: Apache-2.0
// Processes that die at any moment, many at once, disks that are full, folders that are read-only:
// no wrong kernel, nothing waited for for ever, no plan of another process lost. LADDER_KILLS sets
// how many processes are killed (`make kill-test`: 200).
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "fakes/fakes.h"
#include "runtime/compile_ahead.h"
#include "runtime/kernels.h"
#include "runtime/plan.h"
#include "runtime/session.h"
#include "store_fixture.h"

namespace ladder {
namespace {

class Robustness : public StoreTest {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    setenv("LADDER_CACHE", cache().c_str(), 1);
    cuda::add_nvrtc_directory(LADDER_FAKES);
  }
  void TearDown() override {
    unsetenv("LADDER_CACHE");
    StoreTest::TearDown();
  }

  static std::string code_of(const KernelKey& key) { return key.flags + "\n" + key.source; }
  static cuda::Binary compile(const KernelKey& key) { return cuda::compile(key.source, key.flags); }

  /// Of the user's cache: entries that are found, and each as it was compiled.
  std::size_t whole_entries() const {
    const KernelStore there(cache());
    std::size_t count = 0;
    std::error_code none;
    for (const auto& each : fs::directory_iterator(fs::path(cache()) / "kernels", none)) {
      if (each.path().filename().string().size() != 32) continue;
      const KernelKey key{contents(each.path() / "source.cu"), "nvrtc 13.0", "sm_90a"};
      const auto found = there.find(key);
      if (!found) ADD_FAILURE() << each.path() << " is an entry and not found";
      if (found) {
        EXPECT_EQ(found->cubin, code_of(key));
      }
      ++count;
    }
    return count;
  }

  static Session& weight(std::int64_t n) {
    return session(open_session(ttype("uint4,group=64,scale=float16"), n, 256));
  }
  /// As ladder/cuda/tune.py: compiles candidates in other processes, takes each, keeps the best.
  static std::string tune(std::int64_t n) {
    Session& session = weight(n);
    const auto schedules = session.schedules(0, Scalar::f16, 1, 2);
    if (schedules.empty()) throw std::runtime_error("no schedule");
    session.linear(0, Scalar::f16, 1, nullptr);
    session.keep(0, Scalar::f16, 1, schedules.back());
    return schedules.back();
  }
  static std::string stored(const KernelStore& store, std::int64_t n) {
    const Linear expr =
        expression(ttype("uint4,group=64,scale=float16"), n, 256, false, Scalar::f16, 1);
    return store.plan(problem_of(expr, device_row(0), false)).value_or("");
  }
};

int kills() {
  const char* value = std::getenv("LADDER_KILLS");
  return value == nullptr ? 24 : std::atoi(value);
}

/// What a child says before it is killed: numbers, each of them after its work is done.
class Said {
 public:
  Said() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Said() {
    for (const int end : ends_) close(end);
  }
  void say(int number) const { (void)!write(ends_[1], &number, sizeof number); }
  std::vector<int> all() const {
    std::vector<int> numbers;
    pollfd ready{ends_[0], POLLIN, 0};
    for (int number; poll(&ready, 1, 0) > 0 && read(ends_[0], &number, sizeof number) > 0;) {
      numbers.push_back(number);
    }
    return numbers;
  }

 private:
  int ends_[2];
};

/// Runs `body` in a child that is killed after `microseconds`.
template <class Body>
void killed_after(unsigned microseconds, const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  usleep(microseconds);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(Robustness, killed_while_storing_nothing_wrong_is_found_and_no_plan_is_lost) {
  std::mt19937 random(1);
  const KernelStore there(cache());
  std::set<int> plans;
  for (int kill = 0; kill < kills(); ++kill) {
    const Said said;
    killed_after(random() % 120000, [&] {
      for (int i = 0;; ++i) {
        const int number = 1000 * kill + i;
        const KernelKey key{"kernel " + std::to_string(i % 7) + std::string(20000, 'x'),
                            "nvrtc 13.0", "sm_90a"};
        if (there.find_or(key, [&] { return compile(key); }).cubin != code_of(key)) abort();
        if (i % 3 == 0) there.clean({.unused_seconds = 0});
        there.keep_plan(std::to_string(number), "plan");
        said.say(number);
      }
    });
    for (const int number : said.all()) plans.insert(number);
    whole_entries();
  }
  EXPECT_GT(plans.size(), 0u);
  for (const int number : plans) EXPECT_EQ(there.plan(std::to_string(number)), "plan") << number;
  // The next process has everything as ever, and clears up.
  for (int i = 0; i < 7; ++i) {
    const KernelKey key{"kernel " + std::to_string(i) + std::string(20000, 'x'), "nvrtc 13.0",
                        "sm_90a"};
    EXPECT_EQ(there.find_or(key, [&] { return compile(key); }).cubin, code_of(key));
  }
  EXPECT_EQ(whole_entries(), 7u);
  there.keep_plan("last", "plan");
  there.clean({});
  for (const auto& left : fs::recursive_directory_iterator(cache())) {
    if (left.path().string().find("key.") != std::string::npos) continue;
    EXPECT_FALSE(left.path().string().ends_with(".staged")) << left.path();
  }
}

TEST_F(Robustness, killed_while_tuning_nothing_wrong_is_found_and_no_plan_is_lost) {
  std::mt19937 random(2);
  const KernelStore there(cache());
  std::set<int> tuned;
  for (int kill = 0; kill < kills(); ++kill) {
    const Said said;
    killed_after(random() % 400000, [&] {
      for (int i = 1;; ++i) {
        tune(64 * i);
        said.say(64 * i);
      }
    });
    for (const int n : said.all()) tuned.insert(n);
    whole_entries();
    for (const int n : tuned) EXPECT_NE(stored(there, n), "") << n;
    // What killed processes had started still compiles into it.
    if (kill % 3 == 2) there.clean({.unused_seconds = 0});
  }
  EXPECT_GT(tuned.size(), 0u);
  EXPECT_EQ(in_child([] {
              alarm(120);  // and not for ever
              for (int i = 1; i <= 3; ++i) tune(64 * i);
              return 0;
            }),
            0);
}

TEST_F(Robustness, eight_processes_keep_all_plans_and_compile_each_kernel_once) {
  constexpr int kProcesses = 8, kEach = 12, kKernels = 6;
  const KernelStore there(cache());
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    bool right = true;
    for (int i = 0; i < kEach; ++i) {
      const KernelKey key = numbered((i + process) % kKernels);
      const auto binary = there.find_or(key, [&] {
        std::ofstream(folder_ / "compilations", std::ios::app) << 'x';
        return compile(key);
      });
      right = right && binary.cubin == code_of(key);
      there.keep_plan(std::to_string(100 * process + i), "plan");
    }
    _exit(right ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  for (int process = 0; process < kProcesses; ++process) {
    for (int i = 0; i < kEach; ++i) {
      EXPECT_EQ(there.plan(std::to_string(100 * process + i)), "plan") << process << ' ' << i;
    }
  }
  EXPECT_EQ(compilations(), static_cast<std::size_t>(kKernels));
}

TEST_F(Robustness, eight_processes_tune_at_once) {
  std::vector<pid_t> children;
  for (int process = 0; process < 8; ++process) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    alarm(300);
    tune(64);
    tune(64 * (2 + process));
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const KernelStore there(cache());
  for (int process = 0; process < 8; ++process) {
    EXPECT_NE(stored(there, 64 * (2 + process)), "") << process;
  }
  EXPECT_GT(whole_entries(), 8u);
}

/// What a process does with a disk that has no room for all of it.
int work_on(const KernelStore& store, const std::string& before) {
  for (int i = 0; i < 3; ++i) {
    const KernelKey key{"kernel " + std::to_string(i) + std::string(9000, 'x'), "nvrtc 13.0",
                        "sm_90a"};
    const auto compile = [&] { return cuda::compile(key.source, key.flags); };
    if (store.find_or(key, compile).cubin != key.flags + "\n" + key.source) return 1;
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
              return mine.find_or(key, [&] { return compile(key); }).cubin == code_of(key) ? 0 : 1;
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
              if (mine.find_or(other, [&] { return compile(other); }).cubin != code_of(other)) {
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
