// SPDX-License-Identifier: Apache-2.0
#include "runtime/in_parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ladder {
namespace {

TEST(InParallel, every_number_has_its_turn_once) {
  for (const std::size_t count : {0, 1, 2, 1000}) {
    std::vector<std::atomic<int>> turns(count);
    in_parallel(count, [&](std::size_t i) { ++turns.at(i); });
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(turns[i], 1) << i << " of " << count;
  }
}

TEST(InParallel, what_a_call_throws_arrives_once_all_that_began_have_ended) {
  std::atomic<int> began = 0, ended = 0;
  const auto body = [&](std::size_t i) {
    ++began;
    if (i == 0) throw std::out_of_range("the first");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++ended;
  };
  EXPECT_THROW(in_parallel(1000, body), std::out_of_range);
  EXPECT_EQ(began, ended + 1);
  EXPECT_LT(began, 1000);  // numbers that nobody had taken
}

}  // namespace
}  // namespace ladder
