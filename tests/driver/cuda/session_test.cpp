// SPDX-License-Identifier: Apache-2.0
// What a session does where the driver refuses, and with kernels that were only measured.
#include "runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "fakes/driver.h"
#include "fakes/fakes.h"
#include "runtime/device_row.h"
#include "runtime/gpus.h"
#include "runtime/notices.h"
#include "with_store.h"

namespace ladder {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kTokens = 1;

/// Kernels of a store of its own, compiled once for all tests.
class Sessions : public testing::WithStore {
 protected:
  /// Rows of its own for each test: a session is for the life of the process.
  Session& of(std::int64_t n) {
    return session(open_session(ttype("uint4,group=64,scale=float16"), n, 512));
  }
  const LinearKernel* kernel(Session& s, int ordinal) {
    return s.linear(ordinal, Scalar::f16, kTokens, stream_);
  }
  bool start(const LinearKernel& kernel) { return kernel.start(stream_, nullptr); }

  void* const stream_ = fake::new_stream();
};

TEST_F(Sessions, take_the_next_schedule_where_the_driver_refuses_a_launch) {
  Session& s = of(64);
  const LinearKernel* const first = kernel(s, 1);
  ASSERT_NE(first, nullptr);
  fake::refuse_launches(1);
  EXPECT_FALSE(start(*first));
  const LinearKernel* const next = s.instead_of(*first, 1, Scalar::f16, kTokens, stream_);
  ASSERT_NE(next, nullptr);
  EXPECT_NE(next->schedule, first->schedule);
  EXPECT_TRUE(start(*next));
  // From now on, and for whoever was refused at the same time.
  EXPECT_EQ(kernel(s, 1), next);
  EXPECT_EQ(s.instead_of(*first, 1, Scalar::f16, kTokens, stream_), next);
}

TEST_F(Sessions, compile_nothing_for_a_refused_launch_during_a_capture) {
  Session& s = of(65);
  const LinearKernel* const first = kernel(s, 1);
  void* const graph = fake::begin_capture(stream_);
  EXPECT_THAT([&] { s.instead_of(*first, 1, Scalar::f16, kTokens, stream_); },
              ThrowsMessage<Unsupported>(HasSubstr("before the capture")));
  fake::end_capture(stream_);
  fake::destroy_graph(graph);
}

// The image is of one weight; what is made of its sums is not.
TEST_F(Sessions, of_gates_have_kernels_and_plans_of_their_own) {
  constexpr std::int64_t kRows = 160;
  const auto opened = [](const std::optional<Gating>& gating) {
    return open_session(ttype("uint4,group=64,scale=float16"), kRows, 512, false, false,
                        std::nullopt, false, gating);
  };
  const Gating limited{.limit = 7};
  EXPECT_NE(opened(Gating{}), opened(std::nullopt));
  EXPECT_NE(opened(Gating{}), opened(limited));
  EXPECT_EQ(opened(limited), opened(limited));
  Session& gated = session(opened(Gating{}));
  Session& plain = of(kRows);
  EXPECT_EQ(gated.columns_of_y(), kRows / 2);
  EXPECT_EQ(plain.columns_of_y(), kRows);
  EXPECT_EQ(gated.parts().words, plain.parts().words);
  for (const std::int64_t m : {1, 16, 40, 600}) {
    const LinearKernel* const found = gated.linear(1, Scalar::f16, m, stream_);
    ASSERT_NE(found, nullptr) << m;
    EXPECT_NE(found->kernel, plain.linear(1, Scalar::f16, m, stream_)->kernel) << m;
  }
  const auto schedule = gated.schedules(1, Scalar::f16, 40, 1).front();
  gated.keep(1, Scalar::f16, 40, schedule, 1);
  EXPECT_TRUE(gated.plan(1, Scalar::f16, 40));
  EXPECT_FALSE(plain.plan(1, Scalar::f16, 40));
  EXPECT_FALSE(session(opened(limited)).plan(1, Scalar::f16, 40));
  EXPECT_THAT(
      [] {
        open_session(ttype("uint4,group=64,scale=float16"), 168, 512, false, false, std::nullopt,
                     false, Gating{});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("gate and up have 168 rows")));
}

TEST_F(Sessions, add_a_residual_by_the_plan_of_the_layer_where_they_have_none) {
  Session& plain = of(74);
  const auto all = plain.schedules(1, Scalar::f16, 40, 3);
  ASSERT_GE(all.size(), 3U);
  plain.keep(1, Scalar::f16, 40, all[1], 3);
  Session& plus = plain.with_residual();
  const LinearKernel* const kernel = plus.linear(1, Scalar::f16, 40, stream_);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->schedule, all[1]);
  const LinearKernel* const without = plain.linear(1, Scalar::f16, 40, stream_);
  EXPECT_EQ(std::ranges::count(kernel->operands, Operand::residual), 1);
  EXPECT_EQ(std::ranges::count(without->operands, Operand::residual), 0);
  // One of its own goes before.
  const auto own = plus.schedules(1, Scalar::f16, 20, 1).front();
  const auto others = plain.schedules(1, Scalar::f16, 20, 3);
  const auto other = std::ranges::find_if(others, [&](const auto& each) { return each != own; });
  ASSERT_NE(other, others.end());
  plain.keep(1, Scalar::f16, 20, *other, 3);
  plus.keep(1, Scalar::f16, 20, own, 1);
  EXPECT_EQ(plus.linear(1, Scalar::f16, 20, stream_)->schedule, own);
  // What images need is the layer's.
  EXPECT_EQ(&plus.transform(1, Session::Transform::pack, stream_),
            &plain.transform(1, Session::Transform::pack, stream_));
  void* const graph = fake::begin_capture(stream_);
  EXPECT_THAT(
      [&] { plus.linear(1, Scalar::f16, 1, stream_); },
      ThrowsMessage<Unsupported>(HasSubstr("for 1 tokens and a residual is not compiled, and "
                                           "a CUDA graph is being captured: call "
                                           "layer.compile_for(dtype, m, residual=True)")));
  fake::end_capture(stream_);
  fake::destroy_graph(graph);
}

TEST_F(Sessions, have_a_kernel_for_many_tokens) {
  Session& s = of(66);
  const auto passes = [&](std::int64_t m) { return s.passes(1, Scalar::f16, m, stream_); };
  EXPECT_EQ(passes(8).most, s.linear(1, Scalar::f16, 8, stream_));
  EXPECT_EQ(passes(8).step, 8);
  const auto many = passes(40);
  EXPECT_EQ(many.step, 40);
  EXPECT_EQ(many.most, s.linear(1, Scalar::f16, 48, stream_));
  EXPECT_EQ(many.last, many.most);
  EXPECT_EQ(passes(65).most, s.linear(1, Scalar::f16, 96, stream_));
  EXPECT_EQ(s.passes(1, Scalar::f32, 8, stream_).most, nullptr);
}

TEST_F(Sessions, have_passes_of_the_largest_kernel_for_more_tokens_than_it_serves) {
  Session& s = of(72);
  constexpr std::int64_t kMany = 20000, kRest = kMany - 2 * kMostTokens;
  const auto passes = [&] { return s.passes(1, Scalar::f16, kMany, stream_); };
  const auto* const most = s.linear(1, Scalar::f16, kMostTokens, stream_);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(passes().step, kMostTokens);
  EXPECT_EQ(passes().most, most);
  EXPECT_EQ(passes().last, s.linear(1, Scalar::f16, kRest, stream_));
  s.use(1, Scalar::f16, kRest, "dense", Session::Purpose::good);
  EXPECT_EQ(passes().last, most) << "serves fewer, too";
  s.use(1, Scalar::f16, kMostTokens, "dense", Session::Purpose::good);
  EXPECT_EQ(passes().most, nullptr);
}

TEST_F(Sessions, multiply_densely_where_that_was_the_fastest) {
  Session& s = of(68);
  const auto all = s.schedules(1, Scalar::f16, 40, 2);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all.back(), "dense");
  EXPECT_NE(s.linear(1, Scalar::f16, 40, stream_), nullptr);
  s.use(1, Scalar::f16, 40, "dense", Session::Purpose::good);
  s.keep(1, Scalar::f16, 40, "dense", 3);
  EXPECT_EQ(s.linear(1, Scalar::f16, 40, stream_), nullptr);
  EXPECT_EQ(s.passes(1, Scalar::f16, 40, stream_).most, nullptr) << "nor pass by pass";
  EXPECT_EQ(s.plan(1, Scalar::f16, 40), Schedule(DenseSchedule{}));
  // Up to the tokens of decode kernels it is none of the scheduler's.
  EXPECT_THAT(s.schedules(1, Scalar::f16, 32, 2), ::testing::Not(::testing::Contains("dense")));
  EXPECT_THROW(s.use(1, Scalar::f16, 32, "dense", Session::Purpose::good), Unsupported);
}

TEST_F(Sessions, have_passes_where_all_kernels_of_many_tokens_spill) {
  setenv("LADDER_FAKE_SPILLS", "24u? < tokens", 1);  // a row that other kernels do not have
  Session& s = of(67);
  EXPECT_EQ(s.linear(1, Scalar::f16, 32, stream_), nullptr);
  const auto passes = s.passes(1, Scalar::f16, 40, stream_);
  EXPECT_EQ(passes.step, 16);
  EXPECT_EQ(passes.most, s.linear(1, Scalar::f16, 16, stream_));
  EXPECT_EQ(passes.last, s.linear(1, Scalar::f16, 8, stream_));
  unsetenv("LADDER_FAKE_SPILLS");
}

fake::Machine turing() {
  return {.name = "Tesla T4",
          .capability = 75,
          .multiprocessors = 40,
          .memory_bytes = 15.8e9,
          .clock_khz = 1590000,
          .memory_khz = 5001000,
          .bus_bits = 256,
          .l2_bytes = 4 << 20,
          .shared_bytes = 64 << 10,
          .shared_per_block_bytes = 64 << 10,
          .threads = 1024,
          .largest_cluster = 1};
}

TEST_F(Sessions, have_kernels_of_float16_on_turing) {
  fake::machine(3) = turing();
  EXPECT_EQ(device_row(3).name, "t4");
  Session& s = of(69);
  for (const std::int64_t m : {1, 16, 40, 256}) {
    const LinearKernel* const found = s.linear(3, Scalar::f16, m, stream_);
    ASSERT_NE(found, nullptr) << m;
    EXPECT_TRUE(start(*found)) << m;
  }
  EXPECT_EQ(no_kernels(s.type(), s.n(), s.k(), false, device_row(3)), "");
}

// Kernels by waves, compiled by an NVRTC that knows sm_70.
TEST_F(Sessions, have_kernels_of_float16_on_volta) {
  fake::machine(4) = {.name = "Tesla V100-SXM2-32GB",
                      .capability = 70,
                      .multiprocessors = 80,
                      .memory_bytes = 34.1e9,
                      .clock_khz = 1530000,
                      .memory_khz = 877000,
                      .bus_bits = 4096,
                      .l2_bytes = 6 << 20,
                      .shared_bytes = 96 << 10,
                      .shared_per_block_bytes = 96 << 10,
                      .threads = 2048,
                      .largest_cluster = 1};
  EXPECT_EQ(device_row(4).architecture, "sm_70");
  Session& s = of(71);
  EXPECT_EQ(no_kernels(s.type(), s.n(), s.k(), false, device_row(4)),
            "nvrtc 13.0 compiles for sm_75 to sm_120, none of which runs on this device's sm_70");
  const int oldest = std::exchange(fake_nvrtc.architectures[0], 70);
  for (const std::int64_t m : {1, 16, 40, 256}) {
    const LinearKernel* const found = s.linear(4, Scalar::f16, m, stream_);
    ASSERT_NE(found, nullptr) << m;
    EXPECT_TRUE(start(*found)) << m;
  }
  EXPECT_EQ(s.linear(4, Scalar::bf16, 1, stream_), nullptr);
  fake_nvrtc.architectures[0] = oldest;
}

TEST_F(Sessions, dequantise_beside_bfloat16_on_turing_and_say_why_once) {
  fake::machine(3) = turing();
  Session& s = of(70);
  take_notices();
  EXPECT_EQ(s.linear(3, Scalar::bf16, 1, stream_), nullptr);
  EXPECT_EQ(s.passes(3, Scalar::bf16, 40, stream_).most, nullptr);
  EXPECT_EQ(take_notices(),
            "cuda:3 (t4) has no instruction that multiplies bfloat16: weights are dequantised in "
            "each call with such activations, which float16 ones avoid\n");
  EXPECT_THAT([&] { s.schedules(3, Scalar::bf16, 1, 2); },
              ThrowsMessage<Unsupported>(HasSubstr("no instruction of t4 multiplies bfloat16")));
  // What dequantises is compiled there.
  s.transform(3, Session::Transform::dequantize_bf16, stream_);
}

/// The first schedule of `s` for 16 tokens that has clusters; "" if none.
std::string clustered(const Session& s, int ordinal) {
  const Problem problem = expression(s.type(), s.n(), s.k(), s.gather(), Scalar::f16, 16);
  for (const Candidate& candidate : candidates(decide(problem, device_row(ordinal)))) {
    const auto& schedule = std::get<DecodeSchedule>(candidate.schedule);
    if (candidate.dropped.empty() &&
        (schedule.reduction == Reduction::cluster ||
         (schedule.bulk_copy() != nullptr && schedule.bulk_copy()->multicast > 1))) {
      return to_string(schedule);
    }
  }
  return "";
}

TEST_F(Sessions, schedule_no_cluster_where_none_fits) {
  fake::machine(2).name = "NVIDIA H200 MIG 1g.18gb";
  fake::machine(2).multiprocessors = 16;
  fake::machine(2).largest_cluster = 1;
  EXPECT_NE(clustered(of(128), 1), "");
  EXPECT_EQ(clustered(of(128), 2), "");
}

TEST_F(Sessions, refuse_a_kernel_whose_cluster_fits_nowhere) {
  Session& s = of(128);
  const std::string schedule = clustered(s, 1);
  fake::machine(1).fits_compiled_clusters = false;
  EXPECT_THAT([&] { s.use(1, Scalar::f16, 16, schedule, Session::Purpose::measuring); },
              ThrowsMessage<Unsupported>(HasSubstr("fits nowhere on h200")));
  fake::machine(1).fits_compiled_clusters = true;
  s.use(1, Scalar::f16, 16, schedule, Session::Purpose::measuring);
  EXPECT_EQ(s.linear(1, Scalar::f16, 16, stream_)->schedule, schedule);
}

TEST_F(Sessions, keep_of_what_was_measured_the_winner_only) {
  Session& s = of(192);
  const auto candidates = s.schedules(1, Scalar::f16, kTokens, 4);
  ASSERT_GE(candidates.size(), 3);
  unload_losers();
  const int before = fake::loaded_now();
  const LinearKernel* last = nullptr;
  for (const auto& each : candidates) {
    s.use(1, Scalar::f16, kTokens, each, Session::Purpose::measuring);
    EXPECT_EQ(fake::loaded_now(), before + 1) << each;
    last = kernel(s, 1);
    EXPECT_EQ(last->schedule, each);
    EXPECT_TRUE(start(*last));
  }
  s.use(1, Scalar::f16, kTokens, candidates[1], Session::Purpose::good);
  EXPECT_EQ(fake::loaded_now(), before + 1);
  // A call that took the last candidate from the slot a moment before gets the winner.
  EXPECT_FALSE(start(*last));
  EXPECT_EQ(s.instead_of(*last, 1, Scalar::f16, kTokens, stream_), kernel(s, 1));
  EXPECT_EQ(kernel(s, 1)->schedule, candidates[1]);
  EXPECT_TRUE(start(*kernel(s, 1)));
}

}  // namespace
}  // namespace ladder
