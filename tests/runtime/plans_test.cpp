// SPDX-License-Identifier: Apache-2.0
// Plans that travel, starts from what is stored, many processes that start at once.
#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "fakes/driver.h"
#include "robustness.h"

namespace ladder {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTokens[] = {1, 8, 16};

class Plans : public Robustness {
 protected:
  void SetUp() override {
    Robustness::SetUp();
    // Helper processes have it too.
    setenv("LADDER_FAKE_COMPILED", log().c_str(), 1);
  }
  void TearDown() override {
    unsetenv("LADDER_FAKE_COMPILED");
    unsetenv("LADDER_FAKE_COMPILE_MS");
    Robustness::TearDown();
  }

  std::string log() const { return (folder_ / "compiled").string(); }
  std::string model() const { return (folder_ / "model").string(); }

  /// How often each source was compiled, by this process and all others.
  std::map<std::string, int> compilations() const {
    std::map<std::string, int> counts;
    std::istringstream lines(contents(log()));
    for (std::string line; std::getline(lines, line);) ++counts[line];
    return counts;
  }
  void forget_compilations() const { fs::remove(log()); }

  /// The shapes of a layer of a small model.
  static std::vector<std::int64_t> rows() { return {192, 256, 320, 384}; }

  /// As ladder/cuda/tune.py does for all shapes: a plan, or else candidates, of which the last is
  /// said to be the fastest. Returns how many plans there were.
  static int tune_all(int ordinal, std::int64_t measured = 0) {
    int plans = 0;
    for (const std::int64_t m : kTokens) {
      for (const std::int64_t n : rows()) {
        Session& session = weight(n);
        if (const auto plan = session.plan(ordinal, Scalar::f16, m, measured)) {
          session.compile_ahead(ordinal, Scalar::f16, m, *plan);
          ++plans;
        } else {
          const auto all = session.schedules(ordinal, Scalar::f16, m, 3);
          session.use(ordinal, Scalar::f16, m, all.back(), Session::Purpose::good);
          session.keep(ordinal, Scalar::f16, m, all.back(), 3);
        }
      }
    }
    return plans;
  }
  /// Loads what tune_all chose; the schedules.
  static std::vector<std::string> load_all(int ordinal) {
    std::vector<std::string> schedules;
    for (const std::int64_t m : kTokens) {
      for (const std::int64_t n : rows()) {
        const LinearKernel* kernel = weight(n).linear(ordinal, Scalar::f16, m, nullptr);
        schedules.push_back(kernel == nullptr ? "" : kernel->schedule);
      }
    }
    return schedules;
  }
  static constexpr int kKernels = 12;  // of tune_all
};

// The first process of a machine tunes; the next one takes its plans and its kernels.
TEST_F(Plans, make_the_second_start_compile_nothing_and_measure_nothing) {
  const auto start = [&](int plans) {
    return in_child([&] {
      if (tune_all(0) != plans) return 1;
      std::ofstream(folder_ / "chosen", std::ios::app)
          << testing::PrintToString(load_all(0)) << '\n';
      return 0;
    });
  };
  ASSERT_EQ(start(0), 0);
  EXPECT_GE(compilations().size(), static_cast<std::size_t>(kKernels));
  forget_compilations();
  ASSERT_EQ(start(kKernels), 0);
  EXPECT_TRUE(compilations().empty());
  std::istringstream chosen(contents(folder_ / "chosen"));
  std::string first, second;
  std::getline(chosen, first);
  std::getline(chosen, second);
  EXPECT_EQ(first, second);
}

// A plan of quick tuning serves a start, and not a tuning that asks for more.
TEST_F(Plans, of_fewer_schedules_are_measured_again_where_more_are_asked_for) {
  EXPECT_EQ(in_child([] {
              tune_all(0);
              return tune_all(0, 3) == kKernels && tune_all(0, 4) == 0 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(in_child([] { return tune_all(0, 3) == kKernels && tune_all(0, 4) == 0 ? 0 : 1; }), 0);
}

// Two machines of a name have boost clocks, memory and driver versions of their own.
TEST_F(Plans, made_on_one_h200_serve_another_and_no_h100) {
  ASSERT_EQ(in_child([&] {
              use_store(model(), false);
              return tune_all(0);
            }),
            0);
  ASSERT_TRUE(fs::exists(model() + "/plans.json"));
  EXPECT_FALSE(fs::exists(cache() + "/plans.json"));
  // As it arrives from a hub: without the kernels, which would not be loaded either.
  fs::remove_all(model() + "/kernels");
  fs::permissions(model() + "/plans.json", fs::perms::owner_read);
  const auto plans_on = [&](const auto& change) {
    return in_child([&] {
      change(fake::machine(1));
      use_store(model(), false);
      int plans = 0;
      for (const std::int64_t m : kTokens) {
        for (const std::int64_t n : rows()) plans += weight(n).plan(1, Scalar::f16, m).has_value();
      }
      return plans;
    });
  };
  EXPECT_EQ(plans_on([](fake::Machine&) {}), kKernels);
  EXPECT_EQ(plans_on([](fake::Machine& other) {
              other.clock_khz = 1830000;
              other.memory_khz = 3100000;
              other.memory_bytes = 149.2e9;
            }),
            kKernels);
  EXPECT_EQ(plans_on([](fake::Machine& other) { other.multiprocessors = 114; }), 0);
  EXPECT_EQ(plans_on([](fake::Machine& other) {
              other.name = "NVIDIA H100 80GB HBM3";
              other.memory_bytes = 85e9, other.memory_khz = 2619000, other.bus_bits = 5120;
              other.l2_bytes = 50 << 20;
            }),
            0);
}

// Whoever downloads a model has its plans, and builds its kernels.
TEST_F(Plans, of_somebody_else_are_used_and_their_kernels_compiled_anew) {
  ASSERT_EQ(in_child([&] {
              setenv("LADDER_CACHE", (folder_ / "other").c_str(), 1);
              use_store(model(), false);
              return tune_all(0);
            }),
            0);
  forget_compilations();
  EXPECT_EQ(in_child([&] {
              use_store(model(), false);
              return tune_all(0) == kKernels ? 0 : 1;
            }),
            0);
  EXPECT_EQ(compilations().size(), static_cast<std::size_t>(kKernels));
}

TEST_F(Plans, that_the_scheduler_does_not_have_are_not_used) {
  ASSERT_EQ(in_child([] { return tune_all(0); }), 0);
  const fs::path file = fs::path(cache()) / "plans.json";
  const std::string whole = contents(file);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
    put(file, text);
    return in_child([] { return tune_all(0); });
  };
  EXPECT_EQ(with("warps ", "warps 9"), 0);          // altered
  EXPECT_EQ(with("scheduler ", "scheduler 9"), 0);  // of another scheduler
  put(file, whole.substr(0, whole.size() / 2));     // torn
  EXPECT_EQ(in_child([] { return tune_all(0); }), 0);
  put(file, whole);
  EXPECT_EQ(in_child([] { return tune_all(0); }), kKernels);
  // What it was measured beside may be nonsense: a plan is a plan.
  EXPECT_EQ(with("\"measured\": {", "\"measured\": {\"x\": \"y\","), kKernels);
  EXPECT_EQ(with("\"measured\": {", "\"measure\": {"), kKernels);
}

// The ranks of a node start together, each with a GPU of its own and one user's cache.
TEST_F(Plans, eight_ranks_that_start_together_compile_each_kernel_once) {
  constexpr int kRanks = 8;
  setenv("LADDER_FAKE_COMPILE_MS", "20", 1);
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    alarm(300);
    tune_all(rank);
    const auto schedules = load_all(rank);
    _exit(std::ranges::count(schedules, "") == 0 ? 0 : 1);
  }
  for (const pid_t rank : ranks) {
    int status = -1;
    waitpid(rank, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const auto counts = compilations();
  EXPECT_GE(counts.size(), static_cast<std::size_t>(kKernels));
  for (const auto& [source, count] : counts) EXPECT_EQ(count, 1) << source;
}

// The threads of a process ask for the same shapes: one that loads weights, one that tunes.
TEST_F(Plans, threads_that_want_the_same_kernels_compile_each_once) {
  setenv("LADDER_FAKE_COMPILE_MS", "20", 1);
  EXPECT_EQ(in_child([] {
              std::vector<std::thread> threads;
              for (int i = 0; i < 6; ++i) {
                threads.emplace_back([] {
                  for (const std::int64_t n : rows()) weight(n).schedules(0, Scalar::f16, 1, 3);
                });
              }
              for (std::thread& thread : threads) thread.join();
              return 0;
            }),
            0);
  const auto counts = compilations();
  EXPECT_GE(counts.size(), rows().size());
  for (const auto& [source, count] : counts) EXPECT_EQ(count, 1) << source;
}

TEST_F(Plans, compile_nothing_that_begins_after_the_deadline) {
  EXPECT_EQ(in_child([] {
              const auto schedules = weight(192).schedules(0, Scalar::f16, 1, 3, Clock::now());
              return static_cast<int>(schedules.size());
            }),
            3);
  EXPECT_TRUE(compilations().empty());
  // What is under way is waited for, and nothing else.
  const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
  setenv("LADDER_FAKE_COMPILE_MS", "1500", 1);
  EXPECT_EQ(in_child([&] {
              const auto soon = Clock::now() + std::chrono::milliseconds(1000);
              weight(192).schedules(0, Scalar::f16, 1, 2 * processors + 8, soon);
              return 0;
            }),
            0);
  EXPECT_GT(compilations().size(), 0u);
  EXPECT_LE(compilations().size(), processors);
}

TEST_F(Plans, are_compiled_no_more_once_the_process_is_about_to_exit) {
  EXPECT_EQ(in_child([] {
              stop_compiling_ahead();
              weight(192).schedules(0, Scalar::f16, 1, 3);
              return 0;
            }),
            0);
  EXPECT_TRUE(compilations().empty());
}

}  // namespace
}  // namespace ladder
