// SPDX-License-Identifier: Apache-2.0
//
// Products in tensor memory: exact, and each wait, fence, barrier and commit is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "base/error.h"
#include "pipelines/lower.h"
#include "program/linear_case.h"
#include "program/slips.h"
#include "program/tensor_cases.h"
#include "program/verify_slips.h"

namespace ladder {
namespace {

using testing::expect;
using ::testing::HasSubstr;
using testing::LinearCase;
using testing::tensor_case;
using testing::unproven_b200;

const TType& uint4() { return ttype("uint4,group=128,scale=float16"); }

std::pair<Problem, TileSchedule> one_case(int shape = 0) {
  return tensor_case(testing::kTensorShapes[shape], uint4(), Scalar::f16, Reduction::none, false)
      .at(0);
}

TEST(TensorMemory, programs_of_every_kind_of_type_are_exact) {
  unsigned kept = 0;
  for (const auto& [problem, schedule] : testing::tensor_cases()) {
    const Program program = lower(decide(problem, unproven_b200()), schedule);
    ASSERT_NO_THROW(verify(program, unproven_b200().shared_per_block_bytes)) << to_string(schedule);
    EXPECT_EQ(program.shared_bytes(), shared_bytes(schedule, problem)) << to_string(schedule);
    const auto data = LinearCase::integers(problem, problem.m, ++kept);
    if (decoding_error(problem) > 0) continue;  // of a table
    EXPECT_EQ(data.run(program, schedule), data.exact())
        << to_string(problem) << "; " << to_string(schedule);
  }
  EXPECT_GE(kept, 16U);
}

bool orders(const Statement& s) {
  return std::holds_alternative<Barrier>(s.op) || std::holds_alternative<Await>(s.op) ||
         std::holds_alternative<Arrive>(s.op) || std::holds_alternative<SignalInit>(s.op) ||
         std::holds_alternative<MatrixFence>(s.op) || std::holds_alternative<TensorWait>(s.op) ||
         std::holds_alternative<TensorFence>(s.op) || std::holds_alternative<TensorCommit>(s.op);
}

TEST(TensorMemory, every_wait_fence_barrier_and_commit_is_needed) {
  for (int shape : {0, 1}) {
    const auto [problem, schedule] =
        tensor_case(testing::kTensorShapes[shape], uint4(), Scalar::f16, Reduction::none, false, 5)
            .at(0);
    const Program program = lower(decide(problem, unproven_b200()), schedule);
    const auto data = LinearCase::integers(problem, 3);
    ASSERT_EQ(testing::objection_to(program, schedule, data), "");
    int dropped = 0;
    Program changed = program;
    const std::function<void(std::vector<Statement>&)> look = [&](std::vector<Statement>& body) {
      for (std::size_t i = 0; i < body.size(); ++i) {
        if (orders(body[i])) {
          const Statement without = body[i];
          body.erase(body.begin() + static_cast<std::ptrdiff_t>(i));
          EXPECT_NE(testing::objection_to(changed, schedule, data), "")
              << to_string(program, without) << " is not needed";
          ++dropped;
          body.insert(body.begin() + static_cast<std::ptrdiff_t>(i), without);
        }
        if (auto* loop = std::get_if<For>(&body[i].op)) look(loop->body);
        if (auto* part = std::get_if<Produce>(&body[i].op)) look(part->body);
      }
    };
    look(changed.body);
    EXPECT_GE(dropped, 20);
  }
}

TEST(TensorMemory, is_verified) {
  const auto [problem, schedule] = one_case();
  const Program p = lower(decide(problem, unproven_b200()), schedule);
  expect<TensorStore>(p, "an instruction without tensor memory",
                      [](Program&, TensorStore& i) { i.row = tile_instruction(Scalar::f16); });
  expect<TensorStore>(
      p, "scalars that tcgen05.mma.m128nNk16.f16 does not take",
      [](Program& q, TensorStore& i) { q.registers[i.from].scalar = Scalar::bf16; });
  expect<TensorStore>(p, "is not what lanes of 32 rows hold of tcgen05.mma.m128nNk16.f16",
                      [](Program& q, TensorStore& i) {
                        testing::layout(q, i.from) = spatial({1, 128, 1}) * local({1, 1, 16});
                      });
  expect<TensorStore>(p, "128 threads for 2 products of 128",
                      [](Program& q, TensorStore& i) { q.tensors[i.to].products = 2; });
  expect<TensorStore>(p, "place 2 of 2", [](Program&, TensorStore& i) { i.place = 2; });
  expect<TensorStore>(p, "columns reach 40 of 32", [](Program&, TensorStore& i) { i.column = 32; });
  expect<TensorMma>(p, "an instruction without tensor memory",
                    [](Program&, TensorMma& i) { i.row = nullptr; });
  expect<TensorMma>(
      p, "scalars that tcgen05.mma.m128nNk16.f16 does not take",
      [](Program& q, TensorMma& i) { testing::buffer(q, i.from).scalar = Scalar::bf16; });
  expect<TensorMma>(p, "88 tokens, no multiple of 16 up to 256",
                    [](Program& q, TensorMma& i) { q.tensors[i.sums].columns = 88; });
  expect<TensorMma>(p, "products of sums at 2 places",
                    [](Program& q, TensorMma& i) { q.tensors[i.sums].places = 2; });
  expect<TensorMma>(p, "is not [tiles, tokens, panels, 128 bytes], swizzled",
                    [](Program& q, TensorMma& i) { q.views[i.from].is_swizzled = false; });
  expect<TensorMma>(p, "dimension 0 reaches 4 of 3", [](Program&, TensorMma& i) { i.at[0] = 3; });
  expect<TensorCommit>(p, "mbarrier 2 of 2", [](Program&, TensorCommit& i) { i.index = 2; });
  expect<TensorCommit>(p, "a commit is one arrival, of 128",
                       [](Program& q, TensorCommit& i) { q.signals[i.signal].arrivals = 128; });
  expect<TensorLoad>(p, "has no sums of tcgen05.mma.m128nNk16.f16",
                     [](Program& q, TensorLoad& i) { q.registers[i.to].scalar = Scalar::s32; });
  expect<TensorLoad>(p, "24 tokens of a load, not 16, 32 or 64",
                     [](Program& q, TensorLoad& i) { testing::layout(q, i.to).shape[2] = 24; });
  expect<TensorLoad>(p, "columns reach 96 of 80", [](Program&, TensorLoad& i) { i.column = 80; });
  expect<TensorMma>(p, "1024 columns of tensor memory, of 512",
                    [](Program& q, TensorMma& i) { q.tensors[i.a].columns = 256; });
}

TEST(TensorMemory, is_for_who_asks) {
  const Problem problem = linear_of(uint4(), 4096, 4096, Scalar::f16, 256);
  const auto of = [&](const Device& device) {
    int count = 0;
    for (const TileSchedule& s : tile_space(decide(problem, device), false))
      count += s.tensor_memory;
    return count;
  };
  EXPECT_EQ(of(device("b200")), 0);
  EXPECT_GT(of(unproven_b200()), 0);
  Device h200 = device("h200");
  h200.unproven = true;
  EXPECT_EQ(of(h200), 0);
  const auto [small, schedule] = one_case();
  EXPECT_THAT(objection(schedule, decide(small, device("b200"))), HasSubstr("LADDER_UNPROVEN=1"));
  const auto all = candidates(decide(problem, unproven_b200()));
  EXPECT_TRUE(std::ranges::any_of(all, [](const Candidate& c) {
    const auto* tile = std::get_if<TileSchedule>(&c.schedule);
    return tile != nullptr && tile->tensor_memory && c.dropped.empty();
  }));
}

TEST(TensorMemory, refuses_what_it_does_not_serve) {
  const auto [problem, right] = one_case();
  const auto why = [&](const Problem& e, auto change) {
    TileSchedule s = right;
    change(s);
    return objection(s, decide(e, unproven_b200()));
  };
  const auto same = [](TileSchedule&) {};
  ASSERT_EQ(why(problem, same), "");
  EXPECT_THAT(why(problem, [](TileSchedule& s) { s.producers = false; }),
              HasSubstr("tensor memory without producers"));
  EXPECT_THAT(why(problem, [](TileSchedule& s) { s.scale_place = ScalePlace::usual; }),
              HasSubstr("one set of sums"));
  EXPECT_THAT(why(problem, [](TileSchedule& s) { s.columns = 64; }),
              HasSubstr("k-tiles of 64 columns, not of 2 blocks"));
  EXPECT_THAT(why(problem, [](TileSchedule& s) { s.rows = 256; }), HasSubstr("4 units a warp"));
  EXPECT_THAT(why(problem, [](TileSchedule& s) { s.ctas_per_sm = 2; }), HasSubstr("several CTAs"));
  Problem original = linear_of(ttype("uint4,channel,scale=float16,zero=original"), problem.n,
                               problem.k, Scalar::f16, problem.m);
  EXPECT_THAT(why(original, [](TileSchedule& s) { s.scale_place = ScalePlace::usual; }),
              HasSubstr("no sums of zero points"));
}

TEST(TensorMemory, has_its_schedules_in_words) {
  const auto schedule = one_case().second;
  const auto text = to_string(schedule);
  EXPECT_THAT(text, HasSubstr(", warpgroups, producers, tensor memory, k-tiles "));
  EXPECT_EQ(tile_schedule_of(text), schedule);
}

}  // namespace
}  // namespace ladder
