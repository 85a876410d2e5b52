// SPDX-License-Identifier: Apache-2.0
#include "runtime/in_parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
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

TEST(InParallel, what_a_call_throws_arrives_once_all_have_ended) {
  std::atomic<int> running = 0;
  const auto body = [&](std::size_t i) {
    ++running;
    if (i == 3) {
      --running;
      throw std::out_of_range("three");
    }
    --running;
  };
  EXPECT_THROW(in_parallel(1000, body), std::out_of_range);
  EXPECT_EQ(running, 0);
}

}  // namespace
}  // namespace ladder
