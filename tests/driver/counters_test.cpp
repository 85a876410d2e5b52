// SPDX-License-Identifier: Apache-2.0
#include "runtime/counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "fakes/driver.h"

namespace ladder {
namespace {

constexpr int kDevice = 0;

std::uint32_t* take(void* stream, std::int64_t count = 100) {
  return take_counters(kDevice, count, stream);
}

bool apart(const std::uint32_t* a, const std::uint32_t* b, std::int64_t count = 100) {
  return a + count <= b || b + count <= a;
}

TEST(Counters, are_zero_for_every_stream_from_the_start) {
  void* const stream = fake::new_stream();
  const std::uint32_t* const counters = take(stream, 5000);
  EXPECT_TRUE(std::all_of(counters, counters + 5000, [](std::uint32_t c) { return c == 0; }));
}

TEST(Counters, of_a_stream_are_the_same_for_launches_that_follow_each_other) {
  void* const stream = fake::new_stream();
  std::uint32_t* const first = take(stream);
  EXPECT_EQ(take(stream), first);
  EXPECT_EQ(take(stream, 3), first);
  std::thread([&] { EXPECT_EQ(take(stream), first); }).join();
}

TEST(Counters, of_two_streams_are_apart) {
  void *const a = fake::new_stream(), *const b = fake::new_stream();
  EXPECT_TRUE(apart(take(a), take(b)));
  EXPECT_TRUE(apart(take(nullptr), take(a)));  // the legacy stream
  EXPECT_TRUE(apart(take(a, 7000), take(b, 7000), 7000));
}

// What a destroyed stream was given may still run.
TEST(Counters, of_a_stream_are_not_those_of_another_that_had_its_handle) {
  void* const before = fake::new_stream();
  const std::uint32_t* const counters = take(before);
  fake::destroy_stream(before);
  void* const after = fake::new_stream();
  ASSERT_EQ(after, before);
  EXPECT_TRUE(apart(take(after), counters));
}

TEST(Counters, of_a_launch_in_a_graph_are_nobody_elses) {
  void *const stream = fake::new_stream(), *const other = fake::new_stream();
  const std::uint32_t *const eager = take(stream), *const beside = take(other);
  void* const graph = fake::begin_capture(stream);
  const std::uint32_t *const one = take(stream), *const two = take(stream);
  EXPECT_TRUE(fake::capture_holds(stream));
  fake::end_capture(stream);
  void* const again = fake::begin_capture(stream);
  const std::uint32_t* const three = take(stream);
  fake::end_capture(stream);
  const std::vector all = {eager, beside, one, two, three};
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_TRUE(apart(all[i], all[j])) << i << " and " << j;
  }
  EXPECT_EQ(take(stream), eager);
  fake::destroy_graph(graph);
  fake::destroy_graph(again);
}

TEST(Counters, of_a_graph_come_back_with_the_last_that_was_made_of_it) {
  void* const stream = fake::new_stream();
  const auto captured = [&](void** graph) {
    *graph = fake::begin_capture(stream);
    const std::uint32_t* const counters = take(stream, 3000);
    fake::end_capture(stream);
    return counters;
  };
  void *graph, *second, *third;
  const std::uint32_t* const counters = captured(&graph);
  void* const executable = fake::instantiate(graph);
  fake::destroy_graph(graph);
  EXPECT_NE(captured(&second), counters);
  fake::destroy_graph(executable);
  EXPECT_EQ(captured(&third), counters);
  fake::destroy_graph(second);
  fake::destroy_graph(third);
}

// A new chunk, whatever there is: 65535 tiles are the most that a launch has.
TEST(Counters, are_allocated_without_breaking_a_capture) {
  void* const capturing = fake::new_stream();
  void* const graph = fake::begin_capture(capturing);
  for (int i = 0; i < 3; ++i) take(capturing, 65535);
  EXPECT_TRUE(fake::capture_holds(capturing));
  std::thread([&] {
    for (int i = 0; i < 3; ++i) take(fake::new_stream(), 65535);
  }).join();
  EXPECT_TRUE(fake::capture_holds(capturing));
  fake::end_capture(capturing);
  fake::destroy_graph(graph);
}

TEST(Counters, of_threads_that_ask_at_once_are_apart_where_their_streams_are) {
  constexpr int kThreads = 8, kStreams = 50;
  std::vector<std::set<std::uint32_t*>> taken(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < kStreams; ++i) mine.insert(take(fake::new_stream(), 1000));
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<std::uint32_t*> all;
  for (const auto& mine : taken) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), kThreads * kStreams);
  for (auto at = all.begin(), next = std::next(at); next != all.end(); at = next++) {
    EXPECT_TRUE(apart(*at, *next, 1000));
  }
}

}  // namespace
}  // namespace ladder
