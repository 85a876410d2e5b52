// SPDX-License-Identifier: Apache-2.0
// A release of ROCm without objects of graphs, without the graph of a capture and without ids of
// streams: what a graph has is kept for ever, and nothing else changes.
#include <gtest/gtest.h>

#include <thread>

#include "fakes/driver.h"
#include "runtime/counters.h"
#include "runtime/gpus.h"
#include "runtime/trial.h"

namespace ladder {
namespace {

TEST(Bare, a_candidate_that_a_graph_may_have_stays_for_ever) {
  void* const stream = fake::new_stream();
  Trial trial(gpus().driver.load("code", "candidate", 0, 0), 0);
  void* const graph = fake::begin_capture(stream);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(trial.launch({{1, 1, 1}, 64, 0, false}, stream, nullptr));
    EXPECT_TRUE(fake::launches().back().captured);
  }
  fake::end_capture(stream);
  trial.lose();
  unload_losers();
  EXPECT_EQ(fake::loaded_now(), 1);
  fake::destroy_graph(graph);
  unload_losers();
  EXPECT_EQ(fake::loaded_now(), 1);
  EXPECT_EQ(fake::mistakes(), "");
}

TEST(Bare, a_candidate_that_no_graph_has_goes) {
  void* const stream = fake::new_stream();
  Trial trial(gpus().driver.load("code", "candidate", 0, 0), 0);
  const int loaded = fake::loaded_now();
  EXPECT_TRUE(trial.launch({{1, 1, 1}, 64, 0, false}, stream, nullptr));
  trial.lose();
  unload_losers();
  EXPECT_EQ(fake::loaded_now(), loaded - 1);
}

TEST(Bare, counters_of_streams_and_graphs_are_apart) {
  void *const one = fake::new_stream(), *const other = fake::new_stream();
  std::uint32_t* const of_one = take_counters(0, 100, one);
  EXPECT_EQ(take_counters(0, 100, one), of_one);
  EXPECT_NE(take_counters(0, 100, other), of_one);
  void* const graph = fake::begin_capture(one);
  std::uint32_t* const captured = take_counters(0, 100, one);
  EXPECT_NE(captured, of_one);
  EXPECT_NE(take_counters(0, 100, one), captured);
  EXPECT_TRUE(fake::capture_holds(one));
  fake::end_capture(one);
  fake::destroy_graph(graph);
}

TEST(Bare, a_stream_of_each_thread_has_an_id_of_each_thread) {
  void* const per_thread = reinterpret_cast<void*>(2);
  const auto mine = gpus().driver.stream_id(per_thread, 0);
  std::uint64_t theirs = mine;
  std::thread([&] { theirs = gpus().driver.stream_id(per_thread, 0); }).join();
  EXPECT_NE(mine, theirs);
  EXPECT_EQ(gpus().driver.stream_id(per_thread, 0), mine);
}

}  // namespace
}  // namespace ladder
