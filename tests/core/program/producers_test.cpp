// SPDX-License-Identifier: Apache-2.0
//
// Warps that only copy: what programs with them may say, and how they are written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "codegen/cuda/emit.h"
#include "pipelines/lower.h"
#include "program/passes.h"
#include "program/slips.h"
#include "program/tile_cases.h"
#include "program/verify_slips.h"

namespace ladder {
namespace {

using testing::faults_of;
using testing::first;
using ::testing::HasSubstr;

Program with_producers() {
  const auto cases = testing::with_producers(
      testing::tile_case(testing::kWarpgroupShapes[4], ttype("uint4,group=128,scale=float16"),
                         Scalar::f16, Reduction::none, Route::multiply_add, false, 4, true));
  const auto& [problem, schedule] = cases.at(0);
  return lower(decide(problem, device("h200")), schedule);
}

TEST(Producers, are_verified) {
  const Program right = with_producers();
  EXPECT_EQ(faults_of(right), "");
  const auto fault = [&](auto change) {
    Program p = right;
    change(p);
    return faults_of(p);
  };
  EXPECT_THAT(fault([](Program& p) { p.roles.reset(); }), HasSubstr("no producers, in: produce"));
  EXPECT_THAT(fault([](Program& p) { p.roles->producers = 96; }),
              HasSubstr("256 consumers and 96 producers are no warpgroups"));
  EXPECT_THAT(fault([](Program& p) { p.roles->consumer_registers = 100; }),
              HasSubstr("100 registers of a role, not 24 to 256 by 8"));
  EXPECT_THAT(fault([](Program& p) { first<Produce>(p.body)->body.push_back({Barrier{}}); }),
              HasSubstr("what producers do not do: barrier"));
  EXPECT_THAT(fault([](Program& p) { p.signals.front().arrivals = 64; }), HasSubstr("64 arrivals"));
  EXPECT_THAT(fault([](Program& p) { p.roles->producer_registers = 240; }),
              HasSubstr("producers give no registers back"));
  EXPECT_THAT(fault([](Program& p) {
                Produce part = *first<Produce>(p.body);
                p.body.push_back({If{kTile, 0, {{std::move(part)}}}});
              }),
              HasSubstr("producers take part in something else than loops"));
  EXPECT_THAT(fault([](Program& p) {
                p.cluster = 2;
                first<For>(p.body)->body.push_back({ClusterBarrier{}});
              }),
              HasSubstr("consumers would wait for producers, in: cluster_barrier"));
}

// A barrier that producers do not come to orders nothing of theirs: it takes one of all threads,
// before the roles part.
TEST(Producers, have_their_signals_made_before_they_part) {
  const Program program = with_producers();
  const auto parted = common_statements(program);
  ASSERT_GT(parted, 0U);
  EXPECT_TRUE(std::holds_alternative<Barrier>(program.body[parted - 1].op));
  const Program again = with_barriers(program);
  EXPECT_EQ(to_string(again), to_string(program));
  EXPECT_EQ(common_statements(again), parted);
}

TEST(Producers, are_written_before_the_consumers_and_end_there) {
  const Program program = with_producers();
  const std::string text = cuda::emit(program);
  const auto kernel = text.find("extern \"C\"");
  EXPECT_THAT(text.substr(kernel), HasSubstr("__launch_bounds__(384, 1)"));
  const auto begin = text.find("if (thread >= 256u) {", kernel),
             end = text.find("more_registers<224>();", begin);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const auto producers = text.substr(begin, end - begin), consumers = text.substr(end);
  EXPECT_THAT(producers, HasSubstr("copies_end();"));
  EXPECT_THAT(producers, HasSubstr("return;"));
  EXPECT_THAT(producers, HasSubstr("copy_async("));
  EXPECT_EQ(producers.find("mma_"), std::string::npos);
  EXPECT_EQ(consumers.find("copy_async("), std::string::npos);
  EXPECT_THAT(consumers, HasSubstr("barrier_of<256>();"));
}

}  // namespace
}  // namespace ladder
