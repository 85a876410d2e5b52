// SPDX-License-Identifier: Apache-2.0
// Kernels as a driver has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "fakes/driver.h"
#include "runtime/gpus.h"
#include "runtime/modules.h"

namespace ladder {
namespace {

constexpr Launch kLaunch{{1, 1, 1}, 32, 0, false};

const Driver& driver() { return gpus().driver; }

SharedKernel load() { return driver().load("machine code", "kernel", 0, 1024); }

TEST(Kernel, is_loaded_once_by_threads_that_ask_at_once) {
  fake::set_load_time(30);
  const int before = fake::loads();
  std::vector<SharedKernel> got(8);
  std::vector<std::thread> threads;
  for (auto& each : got) {
    threads.emplace_back([&] { each = loaded_once("digest of all", 0, load); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(fake::loads(), before + 1);
  for (const auto& each : got) EXPECT_EQ(each, got.front());
  loaded_once("another digest", 0, load);
  loaded_once("digest of all", 1, load);
  EXPECT_EQ(fake::loads(), before + 3);
  fake::set_load_time(0);
}

TEST(Kernel, is_unloaded_with_the_last_who_has_it_and_loaded_anew_after_that) {
  const int before = fake::loaded_now();
  auto one = loaded_once("shared", 0, load), other = loaded_once("shared", 0, load);
  EXPECT_EQ(fake::loaded_now(), before + 1);
  one.reset();
  EXPECT_EQ(fake::loaded_now(), before + 1);
  other.reset();
  EXPECT_EQ(fake::loaded_now(), before);
  EXPECT_NE(loaded_once("shared", 0, load), nullptr);
  EXPECT_EQ(fake::mistakes(), "");
}

TEST(Kernel, that_fails_to_load_is_tried_again) {
  const auto refused = []() -> SharedKernel { fail<ToolchainError>("refused"); };
  EXPECT_THROW(loaded_once("late", 0, refused), ToolchainError);
  EXPECT_NE(loaded_once("late", 0, load), nullptr);
}

TEST(Kernel, comes_and_goes_beside_a_capture_of_another_thread) {
  void* const stream = fake::new_stream();
  void* const graph = fake::begin_capture(stream);
  std::thread([] { load(); }).join();
  EXPECT_TRUE(fake::capture_holds(stream));
  std::thread([] { driver().zeroed_memory(1024, 0); }).join();
  EXPECT_TRUE(fake::capture_holds(stream));
  std::thread([] {
    const auto event = driver().event(0);
    event->record(fake::new_stream());
    EXPECT_TRUE(event->passed());
  }).join();
  EXPECT_TRUE(fake::capture_holds(stream));
  std::thread([] { driver().properties(6); }).join();
  EXPECT_TRUE(fake::capture_holds(stream));
  fake::end_capture(stream);
  fake::destroy_graph(graph);
}

TEST(Kernel, says_that_the_driver_has_no_room_for_it) {
  const auto kernel = load();
  fake::refuse_launches(1);
  EXPECT_FALSE(kernel->launch(kLaunch, nullptr, nullptr));
  EXPECT_TRUE(kernel->launch(kLaunch, nullptr, nullptr));
}

}  // namespace
}  // namespace ladder
