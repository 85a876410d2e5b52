// SPDX-License-Identifier: Apache-2.0
// What reaches AMD's driver, on which device, and what comes of its errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "fakes/driver.h"
#include "fakes/fakes.h"
#include "fakes/hip.h"
#include "runtime/gpus.h"

// As others of the process call them.
extern "C" int hipMalloc(void**, std::size_t);
extern "C" int hipGetLastError();

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::Throws;
using ::testing::ThrowsMessage;

const Driver& driver() { return gpus().driver; }

class Launches : public ::testing::Test {
 protected:
  ~Launches() override {
    EXPECT_EQ(fake::mistakes(), "");
    EXPECT_EQ(fake::pending_error(), 0) << "torch would take it for its own";
    fake::set_argument_bytes({});
    fake::set_device_of_this_thread(0);
  }

  std::unique_ptr<const Kernel> load(int ordinal = 0) {
    return driver().load("code", "kernel", ordinal, 0);
  }
  void* const stream_ = fake::new_stream();
};

TEST_F(Launches, have_the_grid_the_threads_the_memory_and_the_arguments_asked_for) {
  const auto kernel = load(3);
  void* weight = reinterpret_cast<void*>(0x1234567890);
  std::uint32_t tokens = 17;
  void* arguments[] = {&weight, &tokens};
  fake::set_argument_bytes({8, 4});
  ASSERT_TRUE(kernel->launch({{5, 7, 2}, 256, 40960, false}, stream_, arguments));
  const fake::Launched launched = fake::launches().back();
  EXPECT_EQ(launched.kernel, "kernel");
  EXPECT_EQ(launched.stream, stream_);
  EXPECT_EQ(launched.device, 3);
  EXPECT_THAT(launched.grid, testing::ElementsAre(5, 7, 2));
  EXPECT_EQ(launched.threads, 256);
  EXPECT_EQ(launched.shared_bytes, 40960);
  ASSERT_EQ(launched.arguments.size(), 2);
  EXPECT_EQ(std::memcmp(launched.arguments[0].data(), &weight, 8), 0);
  EXPECT_EQ(std::memcmp(launched.arguments[1].data(), &tokens, 4), 0);
  EXPECT_FALSE(launched.captured);
}

TEST_F(Launches, leave_the_device_of_their_thread_as_it_was) {
  fake::set_device_of_this_thread(2);
  const auto kernel = load(1);
  EXPECT_EQ(fake::device_of_this_thread(), 2);
  EXPECT_TRUE(kernel->launch({{1, 1, 1}, 64, 0, false}, stream_, nullptr));
  driver().zeroed_memory(1024, 1);
  const auto event = driver().event(1);
  event->record(stream_);
  EXPECT_TRUE(event->passed());
  EXPECT_EQ(driver().capture_of(stream_, 1), std::nullopt);
  EXPECT_EQ(fake::device_of_this_thread(), 2);
}

TEST_F(Launches, that_no_device_has_room_for_are_refused_without_the_driver) {
  const auto kernel = load();
  const std::size_t before = fake::launches().size();
  EXPECT_FALSE(kernel->launch({{1, 1, 1}, 256, 65537, false}, stream_, nullptr));
  EXPECT_FALSE(kernel->launch({{1, 1, 1}, 1088, 0, false}, stream_, nullptr));
  // Its threads along x are counted in 32 bits.
  EXPECT_FALSE(kernel->launch({{1u << 24, 1, 1}, 256, 0, false}, stream_, nullptr));
  EXPECT_EQ(fake::launches().size(), before);
  EXPECT_TRUE(kernel->launch({{(1u << 24) - 1, 1, 1}, 256, 65536, false}, stream_, nullptr));
}

TEST_F(Launches, that_the_driver_has_no_room_for_are_refused_and_other_errors_thrown) {
  const auto kernel = load();
  const auto start = [&] { return kernel->launch({{1, 1, 1}, 64, 0, false}, stream_, nullptr); };
  for (const int full : {701, 9}) {
    fake::refuse_with(full);
    fake::refuse_launches(1);
    EXPECT_FALSE(start()) << full;
    EXPECT_EQ(fake::pending_error(), 0);
  }
  fake::refuse_with(719);
  fake::refuse_launches(1);
  EXPECT_THAT(start, ThrowsMessage<ToolchainError>(
                         "hipModuleLaunchKernel: hipErrorFake: the fake was told to fail"));
  fake::refuse_with(701);
  EXPECT_TRUE(start());
}

TEST_F(Launches, of_kernels_that_cannot_be_there_are_mistakes_of_ours) {
  const auto kernel = load();
  EXPECT_THAT(
      [&] {
        return kernel->launch({{1, 1, 1}, 64, 0, true}, stream_, nullptr);
      },
      Throws<InternalError>());
  EXPECT_EQ(kernel->resident_clusters({{2, 1, 1}, 64, 0, false}), 0);
}

TEST_F(Launches, have_the_code_of_their_module_where_it_was_loaded_from) {
  const auto kernel = [] {
    const std::string short_lived = "code of a kernel";
    return driver().load(short_lived, "kernel", 0, 0);
  }();
  EXPECT_TRUE(fake::keeps_code_of_modules());
}

TEST_F(Launches, of_code_that_does_not_load_throw_the_words_of_the_driver) {
  fake_driver.load_result = 209;
  EXPECT_THAT([&] { load(); },
              ThrowsMessage<ToolchainError>(HasSubstr("hipModuleLoadData: hipErrorFake")));
  fake_driver.load_result = 0;
  fake_driver.function_result = 500;
  const int before = fake::loaded_now();
  EXPECT_THAT([&] { load(); },
              ThrowsMessage<ToolchainError>(HasSubstr("hipModuleGetFunction: hipErrorFake")));
  EXPECT_EQ(fake::loaded_now(), before) << "the module goes";
  fake_driver.function_result = 0;
}

TEST_F(Launches, wait_for_nobody_to_know_whether_they_have_ended) {
  const auto event = driver().event(0);
  fake::set_busy(stream_, true);
  event->record(stream_);
  EXPECT_FALSE(event->passed());
  EXPECT_EQ(fake::pending_error(), 0);
  fake::set_busy(stream_, false);
  EXPECT_TRUE(event->passed());
}

TEST_F(Launches, in_a_capture_are_of_its_graph_until_something_breaks_it) {
  const auto kernel = load();
  const auto start = [&] { return kernel->launch({{1, 1, 1}, 64, 0, false}, stream_, nullptr); };
  void* const graph = fake::begin_capture(stream_);
  const auto capture = driver().capture_of(stream_, 0);
  ASSERT_TRUE(capture.has_value());
  EXPECT_EQ(capture->graph, graph);
  EXPECT_TRUE(start());
  EXPECT_TRUE(fake::launches().back().captured);
  void* broken = nullptr;
  EXPECT_EQ(hipMalloc(&broken, 8), 900);  // not in relaxed mode
  hipGetLastError();
  EXPECT_THAT(start, ThrowsMessage<ToolchainError>(HasSubstr("hipErrorStreamCaptureInvalidated")));
  EXPECT_THAT([&] { driver().capture_of(stream_, 0); },
              ThrowsMessage<ToolchainError>(HasSubstr("invalidated by an earlier call")));
  fake::end_capture(stream_);
  fake::destroy_graph(graph);
}

TEST_F(Launches, whose_graph_cannot_keep_anything_leave_it_to_the_caller) {
  void* const graph = fake::begin_capture(stream_);
  static int let_go = 0;
  fake_driver.retain_result = 1;
  EXPECT_THAT([&] { driver().keep_with(graph, 0, nullptr, [](void*) { ++let_go; }); },
              ThrowsMessage<ToolchainError>(HasSubstr("hipGraphRetainUserObject: hipErrorFake")));
  fake_driver.retain_result = 0;
  EXPECT_EQ(let_go, 0);
  driver().keep_with(graph, 0, nullptr, [](void*) { ++let_go; });
  fake::end_capture(stream_);
  EXPECT_EQ(let_go, 0);
  fake::destroy_graph(graph);
  EXPECT_EQ(let_go, 1);
}

TEST_F(Launches, have_no_memory_where_the_device_has_none) {
  fake_driver.allocate_result = 2;
  EXPECT_THAT([] { driver().zeroed_memory(1024, 0); },
              ThrowsMessage<ToolchainError>(HasSubstr("hipMalloc: hipErrorFake")));
  fake_driver.allocate_result = 0;
}

}  // namespace
}  // namespace ladder
