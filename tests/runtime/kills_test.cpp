// SPDX-License-Identifier: Apache-2.0
// LADDER_KILLS sets how many processes are killed (`make kill-test`: 200).
#include <fcntl.h>
#include <poll.h>
#include <signal.h>

#include <random>
#include <set>
#include <vector>

#include "robustness.h"

namespace ladder {
namespace {

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
        if (there.find_or(key, [&] { return compile(key); }).bytes != code_of(key)) abort();
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
    EXPECT_EQ(there.find_or(key, [&] { return compile(key); }).bytes, code_of(key));
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
      right = right && binary.bytes == code_of(key);
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

}  // namespace
}  // namespace ladder
