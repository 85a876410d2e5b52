// SPDX-License-Identifier: Apache-2.0
// Candidates that lose are unloaded, and none that is in use.
#include "runtime/trial.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "fakes/driver.h"
#include "runtime/gpus.h"

namespace ladder {
namespace {

constexpr Launch kLaunch{{1, 1, 1}, 32, 0, false};

class Candidates : public ::testing::Test {
 protected:
  Candidates() : trial_(gpus().driver.load("machine code", "candidate", 0, 0), 0) {}
  ~Candidates() override { EXPECT_EQ(fake::mistakes(), ""); }

  bool start() { return trial_.launch(kLaunch, stream_, nullptr); }
  /// How many are loaded beside those of before, after the next sweep.
  int loaded() {
    unload_losers();
    return fake::loaded_now() - before_;
  }

  int before_ = (unload_losers(), fake::loaded_now());
  void* stream_ = fake::new_stream();
  Trial trial_;
};

TEST_F(Candidates, stay_until_they_lose) {
  EXPECT_TRUE(start());
  EXPECT_EQ(loaded(), 1);
  trial_.lose();
  EXPECT_EQ(loaded(), 0);
  EXPECT_FALSE(start());
  trial_.lose();  // once more is nothing
  EXPECT_EQ(loaded(), 0);
}

TEST_F(Candidates, stay_while_they_run) {
  void* const other = fake::new_stream();
  fake::set_busy(stream_, true), fake::set_busy(other, true);
  EXPECT_TRUE(start() && trial_.launch(kLaunch, other, nullptr));
  trial_.lose();
  EXPECT_EQ(loaded(), 1);
  fake::set_busy(stream_, false);
  EXPECT_EQ(loaded(), 1);
  fake::set_busy(other, false);
  EXPECT_EQ(loaded(), 0);
}

TEST_F(Candidates, stay_while_a_graph_has_them) {
  void* const graph = fake::begin_capture(stream_);
  EXPECT_TRUE(start() && start());
  fake::end_capture(stream_);
  void* const executable = fake::instantiate(graph);
  trial_.lose();
  EXPECT_EQ(loaded(), 1);
  fake::destroy_graph(graph);
  EXPECT_EQ(loaded(), 1);
  fake::destroy_graph(executable);
  EXPECT_EQ(loaded(), 0);
}

TEST_F(Candidates, stay_while_any_of_two_graphs_has_them) {
  void* const one = fake::begin_capture(stream_);
  EXPECT_TRUE(start());
  fake::end_capture(stream_);
  void* const two = fake::begin_capture(stream_);
  EXPECT_TRUE(start());
  fake::end_capture(stream_);
  trial_.lose();
  fake::destroy_graph(one);
  EXPECT_EQ(loaded(), 1);
  fake::destroy_graph(two);
  EXPECT_EQ(loaded(), 0);
}

TEST_F(Candidates, stay_while_somebody_else_has_their_kernel) {
  SharedKernel kernel = gpus().driver.load("machine code", "shared", 0, 0);
  Trial trial(kernel, 0);
  EXPECT_TRUE(trial.launch(kLaunch, stream_, nullptr));
  trial.lose();
  EXPECT_EQ(loaded(), 2);
  kernel.reset();
  EXPECT_EQ(loaded(), 1);
  trial_.lose();
  EXPECT_EQ(loaded(), 0);
}

TEST_F(Candidates, lose_while_other_threads_launch_them) {
  std::thread caller([&] {
    while (start()) {
    }
  });
  while (fake::launches().empty()) std::this_thread::yield();
  trial_.lose();
  caller.join();
  EXPECT_EQ(loaded(), 0);
}

TEST_F(Candidates, that_lose_break_no_capture_when_they_go) {
  EXPECT_TRUE(start());
  trial_.lose();
  void* const other = fake::new_stream();
  void* const graph = fake::begin_capture(other);
  EXPECT_EQ(loaded(), 0);
  EXPECT_TRUE(fake::capture_holds(other));
  fake::end_capture(other);
  fake::destroy_graph(graph);
}

}  // namespace
}  // namespace ladder
